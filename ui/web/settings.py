"""What `capsearch ui` passes to the server that it starts."""

from __future__ import annotations

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # addresses that only this machine can reach
INDEXES_VARIABLE = "CAPSEARCH_UI_INDEXES"  # index folders, os.pathsep between them
