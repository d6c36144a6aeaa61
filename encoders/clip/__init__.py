"""CLIP-like models: open_clip's towers in torch, and their export, served without it."""
