"""One module a command, imported only when that command runs.

Output of the commands: terminal, progress, hits, contact sheets.
"""
