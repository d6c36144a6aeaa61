"""A real Streamlit server on a free port of this machine, and a real chromium to open it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import Browser, Page, sync_playwright

from capsearch.ui.cli import serve
from capsearch.ui.web.settings import AccessSettings

TOKEN = "token-of-the-tests"
TOY_PAGE = Path(__file__).parent / "toy_page.py"
REBOUND = "rebound.example"  # a name that resolves to this machine, as in DNS rebinding
START_S = 120  # generous, for a busy machine
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1",
)


def chromium() -> str | None:
    """The path of chromium: $CHROMIUM, or found on $PATH."""
    return (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )


@contextmanager
def serving(
    indexes: Sequence[Path],
    page: Path | None = None,
    timing_log: Path | None = None,
    access: AccessSettings | None = None,
    log: Path | None = None,
) -> Iterator[str]:
    """`capsearch ui` for some indexes, with another page if given; yields its address."""
    port = _free_port()
    arguments = serve._arguments("127.0.0.1", port)
    if page is not None:
        arguments[-1] = str(page)
    access = access or AccessSettings(token=TOKEN)
    with (log or Path(os.devnull)).open("wb") as output:
        server = subprocess.Popen(
            arguments,
            env=serve._environment(tuple(indexes), (), timing_log, access),
            stdin=subprocess.PIPE,  # the server ends when it closes
            stdout=output,
            stderr=output,
        )
    try:
        _wait(f"http://127.0.0.1:{port}/_stcore/health", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def browsing() -> Iterator[Browser]:
    """Headless chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(QUIET))
        yield browser
        browser.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the page's server ended with {server.returncode}")
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(f"{url} did not answer within {START_S} s")


def settled(page: Page) -> None:
    """Wait until the server has nothing more to send.

    Streamlit drops a click on an element that it is just drawing anew.
    """
    idle = '[data-testid="stApp"][data-test-script-state="notRunning"]'
    page.locator(idle).wait_for(timeout=60_000)  # the machine may be busy
