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
from http.client import HTTPConnection
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


# Imported by Python as it starts: records every address outside this machine that is looked for.
WATCH = """
import ipaddress, socket
def watched(method):
    def call(self, address, *more):
        if isinstance(address, tuple) and not ipaddress.ip_address(address[0]).is_loopback:
            open({log!r}, "a").write(str(address))
            raise OSError("no network in this test")
        return method(self, address, *more)
    return call
class Watched(socket.socket):
    connect = watched(socket.socket.connect)
    connect_ex = watched(socket.socket.connect_ex)
    def sendto(self, data, *more):
        return watched(lambda self, address: super().sendto(data, *more))(self, more[-1])
socket.socket = Watched
"""


def handshake(port: int, origin: str | None) -> bytes:
    """The first line that the server answers to a websocket."""
    given = f"Origin: {origin}\r\n" if origin else ""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stream:
        stream.sendall(
            f"GET /_stcore/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{given}"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        return stream.recv(4096).split(b"\r\n")[0]


def test_a_websocket_of_another_origin_is_refused_and_nothing_outside_is_asked(
    tmp_path: Path,
) -> None:
    folder, watch, log = tmp_path / "photos", tmp_path / "watch", tmp_path / "connected"
    folder.mkdir()
    watch.mkdir()
    watching = WATCH.replace("{log!r}", repr(str(log)))
    (watch / "sitecustomize.py").write_text(watching, encoding="utf-8")
    with capsearch_ui(folder, python_path=watch) as (_, port):
        assert b" 101 " in handshake(port, f"http://127.0.0.1:{port}")
        assert b" 403 " in handshake(port, "https://evil.example")
    assert not log.exists()


def status(port: int, method: str, path: str, cookie: str = "", body: bytes = b"") -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body, {"Cookie": cookie} if cookie else {})
    return connection.getresponse().status


def test_without_the_secret_only_the_frame_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    with capsearch_ui(folder, "--password", "open sesame") as (_, port):
        assert status(port, "GET", "/") == status(port, "GET", "/_stcore/health") == 200
        mine = f"capsearch_visitor_{port}={'a' * 32}"
        for cookie in ("", mine):
            assert status(port, "GET", "/media/0123.png", cookie) == 403
            assert status(port, "PUT", "/_stcore/upload_file/a/b", cookie, b"x" * 1000) == 403
            assert status(port, "GET", "/_stcore/metrics", cookie) == 403
