"""Text before and after models: languages, tokenizers, requests, folded words, concepts."""
