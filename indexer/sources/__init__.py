"""Sources of an index: image files, their metadata, and caption files."""
