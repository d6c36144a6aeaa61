"""Data alone: the folders of capsearch's default models (capsearch.encoders.models)."""
