"""Indexes on disk: sources of images and captions, the embedded backend, and the pipeline."""
