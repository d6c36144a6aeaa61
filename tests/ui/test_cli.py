"""The command line as a whole: help, errors, exit codes, lazy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from capsearch.engine import errors
from capsearch.ui.cli import main as cli
from capsearch.ui.cli.main import COMMANDS, main

HEAVY = ("torch", "streamlit", "faiss", "onnxruntime", "PIL", "rich", "pandas", "gensim")


def modules_after(code: str) -> set[str]:
    """The top-level modules a fresh interpreter has after running `code`."""
    script = f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stderr.split()}


def test_help_lists_every_command_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert f"  {name}" in shown
        assert entry.help in shown


def test_help_imports_nothing_heavy() -> None:
    loaded = modules_after("from capsearch.ui.cli.main import main; main(['--help'])")
    assert loaded & set(HEAVY) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_neither_torch_nor_streamlit(name: str) -> None:
    loaded = modules_after(
        f"from capsearch.ui.cli.main import main; assert main(['{name}', '-h']) == 0"
    )
    assert loaded & {"torch", "streamlit"} == set()


def test_a_query_with_the_shipped_models_imports_neither_torch_nor_streamlit(
    image_folder: Path, tmp_path: Path
) -> None:
    index = f"'--index', {str(tmp_path / 'index')!r}"
    script = "from capsearch.ui.cli.main import main; "
    modules_after(f"{script}assert main(['index', {str(image_folder)!r}, {index}]) == 0")
    loaded = modules_after(f"{script}assert main(['query', 'red', '--json', {index}]) == 0")
    assert loaded & {"torch", "streamlit", "pandas", "gensim", "matplotlib"} == set()


@pytest.mark.parametrize("name", ["index", "query", "info", "models", "ui"])
def test_every_command_has_examples_and_a_json_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"capsearch {name}" in shown.split("Examples:")[1]
    assert "--json" in shown


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert version("capsearch") in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["query", "--nonsense"],
        ["query", "cat", "--mode", "loudest"],
        ["query", "cat", "--json", "--paths"],
        ["query", "cat", "--from", "yesterday"],
        ["query", "cat", "--until", "2024-13"],
        ["query", "cat", "--sheet", "hits.doc"],
        ["query", "--image", "/no/such/image.jpg"],
        ["index", "/no/such/folder"],
    ],
)
def test_a_usage_error_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error: " in captured.err


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command
    def command() -> None:
        raise error

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: command)


def test_an_error_is_one_line_on_stderr_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(monkeypatch, errors.IndexMissing("no index at /x;\nrun `capsearch index PATH`"))
    assert main(["info"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "capsearch: no index at /x; run `capsearch index PATH`\n"


def test_an_operating_system_error_is_one_line_too(
    tmp_path: Path, image_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["index", str(image_folder), "--index", str(tmp_path / "file" / "index")]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert str(tmp_path / "file") in captured.err


def test_a_bug_is_a_traceback_and_not_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["info"]) == 130


def test_the_console_script_runs_in_its_own_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from capsearch.ui.cli.main import run; run()", "info"],
        env={"CAPSEARCH_INDEX": str(tmp_path / "none"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_closed_stdout_is_no_traceback() -> None:
    script = (
        "import sys; from capsearch.ui.cli import main; "
        "main.main = lambda: print('x') or sys.stdin.read() or sys.stdout.isatty(); main.run()"
    )
    command = ["sh", "-c", '"$0" -c "$1" <&- >&-', sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
