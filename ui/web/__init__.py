"""The search page in parts: what it remembers, what it may open, and what it draws."""
