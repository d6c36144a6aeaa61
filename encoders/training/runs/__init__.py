"""Whole training runs as the commands start them; export and import of model folders."""
