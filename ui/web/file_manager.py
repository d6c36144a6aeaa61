"""Shows a file in the file manager of this machine's desktop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from capsearch.ui.web.settings import SECRETS

# sys.platform -> the program that opens a folder
_PROGRAMS: Mapping[str, str] = {"darwin": "open", "win32": "explorer"}
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def file_manager() -> str | None:
    """The program that opens folders; None where there is none, or no desktop."""
    program = _PROGRAMS.get(sys.platform, "xdg-open")
    desktop = sys.platform in _PROGRAMS or any(os.environ.get(name) for name in _DISPLAYS)
    return shutil.which(program) if desktop else None


def open_folder(path: Path) -> bool:
    """Open the folder of a file; False if that cannot be done."""
    program = file_manager()
    if program is None:
        return False
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    try:
        subprocess.Popen(
            [program, str(path.absolute().parent)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    return True
