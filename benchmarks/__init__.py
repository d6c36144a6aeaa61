"""Measurements of retrieval quality and speed, beside the published figures."""
