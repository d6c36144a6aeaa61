"""`capsearch ui`: starts the server of the search page, by default for this machine only."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click

from capsearch.engine.errors import MissingExtra
from capsearch.ui.commands.options import json_option
from capsearch.ui.output.terminal import print_json, remark
from capsearch.ui.web.settings import INDEXES_VARIABLE, LOOPBACK
from capsearch.ui.web.style import THEME
from capsearch.ui.web.timing import VARIABLE as TIMING_VARIABLE

EXAMPLES = """\b
Examples:
  capsearch ui
  capsearch ui --index ./images.index --index ./archive.index
  capsearch ui --port 9000 --no-browser
"""

MAX_UPLOAD_MB = 20


@click.command(epilog=EXAMPLES)
@click.option(
    "--index",
    "indexes",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of an index that the page can search. Repeatable.  "
    "[default: $CAPSEARCH_INDEX, or your data directory]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8501,
    show_default=True,
    help="Port to listen on.",
)
@click.option("--no-browser", is_flag=True, help="Start the server without opening a browser.")
@click.option(
    "--timing-log",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Append one JSON line with the server's times for each search. "
    "The text of queries is not logged.",
)
@json_option
def command(
    indexes: tuple[Path, ...],
    host: str,
    port: int,
    no_browser: bool,
    timing_log: Path | None,
    as_json: bool,
) -> int:
    """Open the search page in a browser; Ctrl-C stops the server.

    Only this machine can reach the page. With another --host, everyone who can reach that
    address can view the indexed images: there is no password.
    """
    if find_spec("streamlit") is None:
        raise MissingExtra("the search page", "ui")
    if host not in LOOPBACK:
        remark(f"warning: everyone who can reach {host}:{port} can view these images")
    url = f"http://{host}:{port}"
    if as_json:
        print_json({"url": url, "indexes": [str(path.absolute()) for path in indexes]})
    else:
        click.echo(url)
    return _serve(_arguments(host, port, no_browser), _environment(indexes, timing_log))


def _arguments(host: str, port: int, no_browser: bool) -> list[str]:
    """Streamlit's command line for the page: small uploads, no usage statistics."""
    page = Path(__file__).parent.parent / "page.py"
    settings = {
        "server.address": host,
        "server.port": port,
        "server.headless": str(no_browser).lower(),
        "server.showEmailPrompt": "false",  # would wait for input on a new machine
        "server.maxUploadSize": MAX_UPLOAD_MB,
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
    }
    flags = [f"--{name}={value}" for name, value in {**settings, **THEME}.items()]
    return [sys.executable, "-m", "streamlit", "run", str(page), *flags]


def _environment(indexes: tuple[Path, ...], timing_log: Path | None) -> dict[str, str]:
    """Environment variables for the page: indexes (unset: the default one), timing log."""
    environment = dict(os.environ)
    if indexes:
        chosen = os.pathsep.join(str(path.absolute()) for path in indexes)
        environment[INDEXES_VARIABLE] = chosen
    if timing_log is not None:
        environment[TIMING_VARIABLE] = str(timing_log.absolute())
    return environment


def _serve(arguments: list[str], environment: dict[str, str]) -> int:
    """Run the server until it exits; Ctrl-C reaches it as well and stops it."""
    stderr = 2  # the server's messages go there: stdout is for results
    with subprocess.Popen(arguments, env=environment, stdout=stderr) as server:
        with suppress(KeyboardInterrupt):
            return server.wait()
        return server.wait()  # the same Ctrl-C has reached it; wait until it has closed
