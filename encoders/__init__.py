"""Bytes or text to arrays or tokens: languages, tokenizers, image and text encoders, models."""
