"""The embedded backend: SQLite, vector files and FAISS in one folder."""
