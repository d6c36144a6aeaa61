"""Output of the commands: terminal, progress, hits, contact sheets."""
