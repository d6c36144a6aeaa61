"""The embedded backend: SQLite, plain arrays and FAISS in one folder."""
