"""`capsearch ui`: how the page is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from capsearch.ui.cli import main
from capsearch.ui.commands import ui
from capsearch.ui.web.settings import INDEXES_VARIABLE


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
    monkeypatch.setattr(ui, "_serve", server)
    return server


def test_the_page_is_for_this_machine_only_and_sends_no_statistics(served: Served) -> None:
    assert main(["ui"]) == 0
    assert "--server.address=127.0.0.1" in served.arguments
    assert "--browser.gatherUsageStats=false" in served.arguments


def test_the_page_that_is_served_exists(served: Served) -> None:
    main(["ui"])
    page = Path(served.arguments[served.arguments.index("run") + 1])
    assert page.is_file()


def test_the_indexes_are_passed_to_the_server(served: Served, tmp_path: Path) -> None:
    main(["ui", "--index", str(tmp_path / "a"), "--index", str(tmp_path / "b")])
    passed = served.environment[INDEXES_VARIABLE].split(os.pathsep)
    assert passed == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_another_host_is_a_warning(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--host", "0.0.0.0", "--port", "9000", "--no-browser"]) == 0
    assert "warning" in capsys.readouterr().err
    assert "--server.port=9000" in served.arguments
    assert "--server.headless=true" in served.arguments
    assert "--server.showEmailPrompt=false" in served.arguments  # it would wait for input


def test_json_names_the_url(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    main(["ui", "--json"])
    assert json.loads(capsys.readouterr().out)["url"] == "http://127.0.0.1:8501"


def test_without_streamlit_the_install_command_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ui, "find_spec", lambda name: None)
    assert main(["ui"]) == 2
    assert "pip install 'capsearch[ui]'" in capsys.readouterr().err


def test_the_servers_exit_code_is_returned() -> None:
    import sys

    assert ui._serve([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ)) == 3


def test_uploads_are_limited_and_the_page_has_its_own_theme(served: Served) -> None:
    main(["ui"])
    assert f"--server.maxUploadSize={ui.MAX_UPLOAD_MB}" in served.arguments
    assert any(argument.startswith("--theme.dark.") for argument in served.arguments)


def test_the_timing_log_is_passed_to_the_server(served: Served, tmp_path: Path) -> None:
    main(["ui", "--timing-log", str(tmp_path / "times.jsonl")])
    assert served.environment[ui.TIMING_VARIABLE] == str(tmp_path / "times.jsonl")
