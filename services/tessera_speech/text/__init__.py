"""Text as it is spoken: SSML, normalization, sentences, and token ids for synthesis models."""
