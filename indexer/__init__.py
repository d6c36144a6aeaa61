"""Everything on disk: scanning, decoding, the catalog, the vectors, the pipeline between them."""
