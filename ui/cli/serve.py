"""`capsearch ui`: starts the server of the search page, by default for this machine only.

Who may do what is decided in `ui.web.access`; here a token is made, and passed to the server
and to the user.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import click
from click.core import ParameterSource

import capsearch
from capsearch.engine.errors import MissingExtra
from capsearch.ui.cli.options import OutputFile, json_option
from capsearch.ui.cli.terminal import print_json, remark
from capsearch.ui.web.settings import (
    BACKENDS_VARIABLE,
    INDEXES_VARIABLE,
    LOG_MARK,
    LOOPBACK,
    PASSWORD_VARIABLE,
    TOKEN_PARAM,
    AccessSettings,
)
from capsearch.ui.web.settings import VARIABLE as TIMING_VARIABLE
from capsearch.ui.web.style import THEME

EXAMPLES = """\b
Examples:
  capsearch ui
  capsearch ui --index ./images.index --index ./archive.index
  capsearch ui --backend https://search.example:9200/images
  capsearch ui --port 9000 --no-browser
  CAPSEARCH_UI_PASSWORD=... capsearch ui --host 0.0.0.0 --allow-host photos.example.org

The address that is printed contains a token, new at every start. Whoever opens it may search,
index folders from the page and show files in their folder. Keep it to yourself. The page is also
there without the token, for everyone on this machine, to search only; with --password or another
--host, it asks for the password or the token first. A proxy has to pass on the Host header.
"""

MAX_UPLOAD_MB = 20
TOKEN_BYTES = 24
# A random.py or streamlit.py in the working directory is not code that the server may run. Python
# 3.10 does not know the option; there, the server's own empty directory has to do.
_SAFE_PATH = ("-P",) if sys.version_info >= (3, 11) else ()
_PATHS = ("CAPSEARCH_INDEX", "CAPSEARCH_MODELS", "CAPSEARCH_DATA", "CAPSEARCH_ES_CA")
WILDCARDS = ("0.0.0.0", "::")  # every address of this machine
START_S, POLL_S = 60.0, 0.2
GRACE_S = 10.0  # for the server to end when it is asked to


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
@click.option(
    "--backend",
    "backends",
    multiple=True,
    envvar="CAPSEARCH_BACKEND",
    metavar="URL",
    help="Collection in Elasticsearch, https://HOST:9200/NAME, that the page can search; its "
    "images must be reachable from here under the paths they were indexed with. Repeatable.  "
    "[default: $CAPSEARCH_BACKEND, unless --index is given]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. With any but this machine's own, the page needs the password or "
    "the token.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which the page may be opened, besides addresses and localhost, for "
    "example that of a proxy. Repeatable.",
)
@click.option(
    "--password",
    envvar=PASSWORD_VARIABLE,
    show_envvar=True,
    metavar="TEXT",
    help="The password for searching. Other users of this machine can read it in the list of "
    "processes; better set the variable.",
)
@click.option(
    "--allow-indexing",
    is_flag=True,
    help="Let everyone who may search also index folders of this machine, and thereby view all "
    "images in them, without the token.",
)
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
    type=OutputFile(LOG_MARK),
    metavar="FILE",
    help="Append one JSON line with the server's times for each search. "
    "The text of queries is not logged. FILE is new, or an earlier log.",
)
@json_option
def command(
    indexes: tuple[Path, ...],
    backends: tuple[str, ...],
    host: str,
    hosts: tuple[str, ...],
    password: str | None,
    allow_indexing: bool,
    port: int,
    no_browser: bool,
    timing_log: Path | None,
    as_json: bool,
) -> int:
    """Open the search page in a browser; Ctrl-C stops the server."""
    if find_spec("streamlit") is None:
        raise MissingExtra("the search page", "ui")
    if password is not None and not password.strip():
        raise click.UsageError("the password is empty")
    access = _access(host, hosts, password, allow_indexing)
    backends = _backends(indexes, backends)
    if host not in LOOPBACK:
        remark("warning: images and password travel unencrypted; use a proxy with TLS in public")
    address = f"http://{_name_in_url(host)}:{port}/"
    if as_json:
        indexed = [*(str(path.absolute()) for path in indexes), *backends]
        print_json({"url": _with_token(address, access.token), "indexes": indexed})
    else:
        click.echo(_with_token(address, access.token))
    if not no_browser:
        _open_browser(_with_token(address, access.launch_token), host, port)
    environment = _environment(indexes, backends, timing_log, access)
    return _serve(_arguments(host, port), environment)


def _backends(indexes: tuple[Path, ...], backends: tuple[str, ...]) -> tuple[str, ...]:
    """Those given; those of the environment only without --index. IndexProblem for a wrong URL,
    which may hold a password that must not be passed on."""
    given = click.get_current_context().get_parameter_source("backends")
    if indexes and given is not ParameterSource.COMMANDLINE:
        return ()
    return tuple(str(capsearch.open(url).place) for url in backends)


def _access(
    host: str, hosts: tuple[str, ...], password: str | None, allow_indexing: bool
) -> AccessSettings:
    """New tokens, and the names by which this server may be called."""
    machine = (socket.gethostname(), f"{socket.gethostname()}.local") if host in WILDCARDS else ()
    return AccessSettings(
        token=secrets.token_urlsafe(TOKEN_BYTES),
        launch_token=secrets.token_urlsafe(TOKEN_BYTES),
        password=password or "",
        allow_indexing=allow_indexing,
        hosts=(*hosts, host, *machine),
    )


def _name_in_url(host: str) -> str:
    """The host as a browser on this machine can open it; IPv6 addresses in brackets."""
    name = "localhost" if host in WILDCARDS else host
    return f"[{name}]" if ":" in name else name


def _with_token(address: str, token: str) -> str:
    return f"{address}?{TOKEN_PARAM}={token}"


def _open_browser(url: str, host: str, port: int) -> None:
    """Open the page once the server answers; its own opening would leave out the token."""

    def wait_and_open() -> None:
        target = ("127.0.0.1" if host in WILDCARDS else host, port)
        for _ in range(int(START_S / POLL_S)):
            with suppress(OSError), socket.create_connection(target, timeout=POLL_S):
                webbrowser.open(url)
                return
            time.sleep(POLL_S)

    threading.Thread(target=wait_and_open, daemon=True).start()


def _arguments(host: str, port: int) -> list[str]:
    """Streamlit's command line for the page: small uploads, no usage statistics.

    What protects the page is set here and not left to the user's Streamlit configuration.
    """
    web = Path(__file__).parents[1] / "web"
    settings = {
        "server.address": host,
        "server.port": port,
        "server.headless": "true",
        "server.showEmailPrompt": "false",  # would wait for input on a new machine
        "server.maxUploadSize": MAX_UPLOAD_MB,
        "server.fileWatcherType": "none",
        "server.enableCORS": "true",  # false would accept pages of any origin
        "server.enableXsrfProtection": "true",
        "server.enableStaticServing": "false",
        "global.developmentMode": "false",
        "logger.level": "info",  # debug would log every URL, with its token
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": _name_in_url(host),  # else its own address is looked up online
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
    }
    flags = [f"--{name}={value}" for name, value in {**settings, **THEME}.items()]
    run = [sys.executable, *_SAFE_PATH, "-m", "streamlit", "run", str(web / "server.py")]
    return [*run, *flags, "--", str(web / "page.py")]


def _environment(
    indexes: tuple[Path, ...],
    backends: tuple[str, ...],
    timing_log: Path | None,
    access: AccessSettings,
) -> dict[str, str]:
    """Environment variables for the page: access, collections (unset: the default one), log."""
    environment = {**os.environ, **_absolute_paths(), **access.to_environment()}
    environment["PYTHONSAFEPATH"] = "1"  # for processes that the server starts, too
    environment["STREAMLIT_SERVER_ENABLE_AGENT_API"] = "false"  # older versions do not know it
    if indexes:
        chosen = os.pathsep.join(str(path.absolute()) for path in indexes)
        environment[INDEXES_VARIABLE] = chosen
    if backends:
        environment[BACKENDS_VARIABLE] = " ".join(backends)
    if timing_log is not None:
        environment[TIMING_VARIABLE] = str(timing_log.absolute())
    return environment


def _absolute_paths() -> dict[str, str]:
    """The variables that hold paths, which the server reads in another working directory."""
    paths = {
        name: str(Path(os.environ[name]).absolute()) for name in _PATHS if os.environ.get(name)
    }
    python_path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    joined = os.pathsep.join(str(Path(path).absolute()) for path in python_path)
    return {**paths, "PYTHONPATH": joined} if joined else paths


def _serve(arguments: list[str], environment: dict[str, str]) -> int:
    """Run the server until it exits; signals that end this process end the server.

    Its working directory is an empty one, so that neither code nor settings (.streamlit) are
    found where the user happens to be. Its stdin is a pipe that closes when this process is gone,
    however it ended.
    """
    stderr = 2  # the server's messages go there: stdout is for results
    with (
        tempfile.TemporaryDirectory(prefix="capsearch-ui-") as empty,
        subprocess.Popen(
            arguments, env=environment, cwd=empty, stdin=subprocess.PIPE, stdout=stderr
        ) as server,
        _passed_on(server),
    ):
        with suppress(KeyboardInterrupt):
            return _exit_code(server.wait())
        return _exit_code(server.wait())  # the same Ctrl-C has reached it; wait until it closed


def _exit_code(code: int) -> int:
    """As shells give it: 128 and the number of the signal that ended a process."""
    return code if code >= 0 else 128 - code


@contextmanager
def _passed_on(server: subprocess.Popen[bytes]) -> Iterator[None]:
    """What would end this process alone ends the server, and then this process."""

    def end(signum: int, frame: FrameType | None) -> None:
        server.terminate()
        kill = threading.Timer(GRACE_S, server.kill)
        kill.daemon = True
        kill.start()

    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    names = ("SIGTERM", "SIGHUP", "SIGBREAK")  # those that this system has
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
