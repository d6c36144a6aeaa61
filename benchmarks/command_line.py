"""`capsearch` in new processes, for measurements of whole commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from capsearch.benchmarks import synthetic
from capsearch.benchmarks.timing import timed
from capsearch.engine.errors import CapsearchError

PYTHON = (sys.executable, "-c")
CAPSEARCH = (*PYTHON, "from capsearch.ui.cli import run; run()")


def query_command(index: Path, language: str = "en") -> tuple[str, ...]:
    """A search of an index by a synthetic sentence."""
    return (*CAPSEARCH, "query", synthetic.sentences(language)[0], "--index", str(index))


def run(command: Sequence[str]) -> None:
    """Runs a command; CapsearchError with what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        shown = " ".join(command[2:]).replace(CAPSEARCH[-1], "capsearch")
        raise CapsearchError(f"`{shown}` failed: {done.stderr.strip()[-500:]}")


def run_timed(command: Sequence[str]) -> float:
    """The seconds a command takes."""
    return timed(partial(run, command))
