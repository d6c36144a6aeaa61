"""`capsearch ui`: how the page is started."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from capsearch.ui.cli import serve
from capsearch.ui.cli.main import main
from capsearch.ui.web.settings import (
    BACKENDS_VARIABLE,
    INDEXES_VARIABLE,
    LOG_MARK,
    PASSWORD_VARIABLE,
    AccessSettings,
)


class Served:
    """Stands in for the server: records what it was started with."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.environment: dict[str, str] = {}

    def __call__(self, arguments: list[str], environment: dict[str, str]) -> int:
        self.arguments, self.environment = arguments, environment
        return 0


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    server = Served()
    monkeypatch.setattr(serve, "_serve", server)
    monkeypatch.setattr(serve, "_open_browser", lambda *_: None)
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    return server


def access(served: Served) -> AccessSettings:
    return AccessSettings.from_environment(served.environment)


def test_the_page_is_for_this_machine_only_and_sends_no_statistics(served: Served) -> None:
    assert main(["ui"]) == 0
    assert "--server.address=127.0.0.1" in served.arguments
    assert "--browser.gatherUsageStats=false" in served.arguments


def test_the_page_that_is_served_exists(served: Served) -> None:
    main(["ui"])
    assert Path(served.arguments[served.arguments.index("run") + 1]).is_file()
    assert Path(served.arguments[-1]).is_file()


def test_the_indexes_are_passed_to_the_server(served: Served, tmp_path: Path) -> None:
    main(["ui", "--index", str(tmp_path / "a"), "--index", str(tmp_path / "b")])
    passed = served.environment[INDEXES_VARIABLE].split(os.pathsep)
    assert passed == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_collections_in_a_cluster_are_passed_too_and_those_of_the_environment_without_others(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = "https://search.example:9200/images"
    monkeypatch.setenv("CAPSEARCH_BACKEND", cloud)
    main(["ui"])
    assert served.environment[BACKENDS_VARIABLE] == cloud
    main(["ui", "--index", str(tmp_path)])
    assert BACKENDS_VARIABLE not in served.environment
    main(["ui", "--index", str(tmp_path), "--backend", "https://search.example/other"])
    assert served.environment[BACKENDS_VARIABLE] == "https://search.example:9200/other"


def test_an_address_with_a_password_is_not_passed_on(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "--backend", "https://me:secret@search.example/images"]) == 2
    assert "secret" not in "".join(capsys.readouterr())


def test_the_printed_address_contains_a_new_token_at_every_start(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """There was no token."""
    tokens = set()
    for _ in range(2):
        main(["ui"])
        token = access(served).token
        assert len(token) == 32  # 24 bytes in base64
        assert capsys.readouterr().out == f"http://127.0.0.1:8501/?token={token}\n"
        assert not [one for one in served.arguments if token in one]  # others can read these
        tokens.add(token)
    assert len(tokens) == 2


def test_the_browser_gets_a_token_of_its_own_that_works_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users can read a browser's command line."""
    opened: list[str] = []
    monkeypatch.setattr(serve, "_open_browser", lambda url, *_: opened.append(url))
    main(["ui"])
    main(["ui", "--no-browser"])
    [url] = opened
    assert url.startswith("http://127.0.0.1:8501/?token=")
    assert access(served).token not in url


def test_the_browser_opens_once_the_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Event()
    monkeypatch.setattr("webbrowser.open", lambda url: opened.set())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serve._open_browser("http://x", "127.0.0.1", listening.getsockname()[1])
        assert opened.wait(30)


@pytest.mark.parametrize("arguments", [["--password", "open sesame"], []])
def test_a_password_comes_from_the_option_or_the_environment(
    served: Served, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    if not arguments:
        monkeypatch.setenv(PASSWORD_VARIABLE, "open sesame")
    assert main(["ui", *arguments]) == 0
    assert access(served).password == "open sesame"


def test_an_empty_password_is_refused(served: Served) -> None:
    assert main(["ui", "--password", " "]) == 2


def test_without_a_password_another_host_needs_the_token(served: Served) -> None:
    """Everyone who could reach the address could view the images."""
    assert main(["ui", "--host", "0.0.0.0"]) == 0
    assert access(served).token
    assert socket.gethostname() in access(served).hosts


def test_indexing_for_everyone_and_names_are_passed_to_the_server(served: Served) -> None:
    assert main(["ui", "--allow-indexing", "--allow-host", "photos.example.org"]) == 0
    assert access(served).allow_indexing
    assert "photos.example.org" in access(served).hosts


def test_the_users_streamlit_configuration_cannot_open_the_page_to_other_origins(
    served: Served,
) -> None:
    main(["ui"])
    for option in ("server.enableCORS", "server.enableXsrfProtection"):
        assert f"--{option}=true" in served.arguments
    assert "--logger.level=info" in served.arguments


@pytest.mark.parametrize(
    ("host", "name"), [("::1", "[::1]"), ("0.0.0.0", "localhost"), ("10.0.0.1", "10.0.0.1")]
)
def test_the_printed_address_can_be_opened(
    served: Served, capsys: pytest.CaptureFixture[str], host: str, name: str
) -> None:
    main(["ui", "--host", host])
    assert capsys.readouterr().out.startswith(f"http://{name}:8501/?token=")


def test_help_explains_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for word in ("token", "--password", "CAPSEARCH_UI_PASSWORD", "--allow-indexing"):
        assert word in shown


def test_another_host_is_a_warning(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--host", "0.0.0.0", "--port", "9000", "--no-browser"]) == 0
    assert "warning" in capsys.readouterr().err
    assert "--server.port=9000" in served.arguments
    assert "--server.headless=true" in served.arguments
    assert "--server.showEmailPrompt=false" in served.arguments  # it would wait for input


def test_json_names_the_url(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    main(["ui", "--json"])
    url = json.loads(capsys.readouterr().out)["url"]
    assert url == f"http://127.0.0.1:8501/?token={access(served).token}"


def test_without_streamlit_the_install_command_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert main(["ui"]) == 2
    assert "pip install 'capsearch[ui]'" in capsys.readouterr().err


def test_the_servers_exit_code_is_returned() -> None:
    import sys

    assert serve._serve([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ)) == 3


def test_uploads_are_limited_and_the_page_has_its_own_theme(served: Served) -> None:
    main(["ui"])
    assert f"--server.maxUploadSize={serve.MAX_UPLOAD_MB}" in served.arguments
    assert any(argument.startswith("--theme.dark.") for argument in served.arguments)


def test_the_timing_log_is_passed_to_the_server(served: Served, tmp_path: Path) -> None:
    main(["ui", "--timing-log", str(tmp_path / "times.jsonl")])
    assert served.environment[serve.TIMING_VARIABLE] == str(tmp_path / "times.jsonl")


def test_a_timing_log_is_appended_to_no_other_file(served: Served, tmp_path: Path) -> None:
    photo, log = tmp_path / "holiday.jpg", tmp_path / "times.jsonl"
    photo.write_bytes(b"\xff\xd8\xff\xe0 a photograph")
    assert main(["ui", "--timing-log", str(photo)]) == 2
    log.write_bytes(LOG_MARK + b'2030-01-01"}\n')
    assert main(["ui", "--timing-log", str(log)]) == 0
