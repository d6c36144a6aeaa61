"""Data alone: folders of capsearch's other models (capsearch.encoders.models)."""
