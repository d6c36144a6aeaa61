"""Bytes or text in, arrays or tokens out: languages, tokenizers, image and text encoders."""
