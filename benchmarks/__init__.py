"""Datasets, metrics and the experiments that print a paper's table beside ours."""
