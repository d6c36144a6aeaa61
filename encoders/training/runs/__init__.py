"""Whole training runs: what a command starts, and how models are written and read back."""
