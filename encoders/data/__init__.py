"""Captioned images as training and benchmarks read them: layouts, archives, cached features."""
