"""The server of the page as a process: what it runs, what it connects to, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

START_S = 60.0  # generous, for a busy machine
RUN = "from capsearch.ui.cli.main import run; run()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def wait_until(port: int, *, listening: bool) -> None:
    deadline = time.monotonic() + START_S
    while listens(port) != listening:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def capsearch_ui(
    folder: Path, *options: str, python_path: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`capsearch ui` in a folder, once it listens: its process and its port."""
    script = folder.parent / "run_capsearch.py"
    script.write_text(RUN, encoding="utf-8")
    port = free_port()
    paths = [python_path, os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in paths if p)}
    command = [sys.executable, str(script), "ui", "--no-browser", "--port", str(port), *options]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(port, listening=True)
        yield process, port
    finally:
        process.terminate()
        process.wait(30)
        wait_until(port, listening=False)


def test_no_code_in_the_working_directory_is_run(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("random", "streamlit", "socket"):
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'was-run')!r}, 'w'); raise SystemExit", encoding="utf-8"
        )
    with capsearch_ui(folder):
        pass
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_server_ends_with_the_command_that_started_it(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    with capsearch_ui(folder) as (process, port):
        process.send_signal(number)
        process.wait(30)
        wait_until(port, listening=False)
