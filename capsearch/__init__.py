"""Cross-lingual image search: find images with a sentence in Chinese, Japanese or English."""
