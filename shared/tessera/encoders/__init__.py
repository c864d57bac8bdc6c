"""Encoders: embedding models, rerankers and classifiers, many texts in one row."""
