"""Responses that are kept: their store, conversations that go on, and responses that are made by jobs."""
