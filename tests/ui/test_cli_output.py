"""Terminal output: column widths, sizes, safe text, progress."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import click
import pytest
from rich.console import Console

from capsearch.engine.errors import CapsearchError
from capsearch.engine.records import Progress
from capsearch.ui.cli import main
from capsearch.ui.cli.progress import plain_lines, progress_bar
from capsearch.ui.cli.terminal import aligned, print_json
from capsearch.ui.values import human_bytes, printable


def test_columns_line_up_where_han_is_two_cells_wide() -> None:
    assert aligned([("ab", "x"), ("猫猫", "y")]) == ["ab    x", "猫猫  y"]


def test_no_line_ends_in_spaces() -> None:
    assert aligned([("a", "long"), ("b", "")]) == ["a  long", "b"]


def test_no_rows_are_no_lines() -> None:
    assert aligned([]) == []


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.5 kB"), (80_000_000, "80.0 MB"), (2 * 10**12, "2.0 TB")],
)
def test_sizes_have_decimal_units(count: int, shown: str) -> None:
    assert human_bytes(count) == shown


def test_escape_sequences_and_direction_overrides_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[31mb\u202egpj.exe\nc") == "a\ufffd[31mb\ufffdgpj.exe c"


DIRECTION_CONTROLS = ["\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)),
                      *map(chr, range(0x2066, 0x206A))]  # fmt: skip


@pytest.mark.parametrize("hidden", [*DIRECTION_CONTROLS, "\x1b", "\x9b", "\x7f", "\udc9b"])
def test_marks_isolates_and_undecodable_bytes_are_treated_like_escapes(hidden: str) -> None:
    """U+2066-2069 reached the terminal."""
    assert printable(f"a{hidden}b") == "a\ufffdb"


@pytest.mark.parametrize("separator", ["\n", "\r", "\t", "\u2028", "\u2029"])
def test_line_breaks_are_spaces(separator: str) -> None:
    assert printable(f"a{separator}b") == "a b"


@pytest.mark.parametrize("hidden", [*DIRECTION_CONTROLS, "\x1b", "\x9b", "\x7f", "\udc9b"])
def test_json_escapes_them_and_loses_nothing(
    hidden: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON escapes only what is below U+0020 by itself."""
    print_json([f"猫{hidden}"])
    shown = capsys.readouterr().out
    assert hidden not in shown
    assert "猫" in shown
    assert json.loads(shown) == [f"猫{hidden}"]


@pytest.mark.parametrize(
    "raised",
    [CapsearchError("no \x1b]0;owned\x07\nfile"), OSError(2, "gone", "\x1b[2J"),
     click.UsageError("what is \x1b]0;x\x07?")],
)  # fmt: skip
def test_escape_sequences_in_errors_do_not_reach_the_terminal(
    raised: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only remarks and results were filtered."""

    def fail(*arguments: object, **options: object) -> None:
        raise raised

    monkeypatch.setattr(main.cli, "main", fail)
    assert main.main(["info"]) == 2
    shown = capsys.readouterr().err
    assert "\ufffd" in shown or "\\x1b" in shown  # OSError quotes its file name
    assert not {"\x1b", "\x07"} & set(shown)


def test_a_usage_error_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["query", "--no-such-option"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "Usage: capsearch query [OPTIONS] [TEXT]"


def test_escape_sequences_in_a_stage_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage may name a split of a data set."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as show:
        show(Progress("features of \x1b]0;owned\x07", 3, 10, None))
    assert "\x1b]0;" not in capsys.readouterr().err
    show = plain_lines(Console(stderr=True), iter([0.0, 60.0, 60.0]).__next__)
    show(Progress("features of \x1b]0;owned\x07", 3, 10, None))
    assert "\x1b]0;" not in capsys.readouterr().err


def test_every_script_and_emoji_reach_the_terminal() -> None:
    assert printable("猫とねこ 👩\u200d💻") == "猫とねこ 👩\u200d💻"


def test_dates_and_paths_become_json_strings(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"at": datetime(2024, 5, 31, 12), "path": Path("猫")})
    assert capsys.readouterr().out == '{\n  "at": "2024-05-31T12:00:00",\n  "path": "猫"\n}\n'


def test_a_value_without_a_json_form_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="set has no JSON form"):
        print_json({1})


def test_progress_is_silent_when_stderr_is_not_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_bar() as show:
        show(Progress("embed", 3, 10, "a.jpg"))
    assert capsys.readouterr() == ("", "")


def test_long_work_writes_a_line_a_minute_into_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0, 59, 60, 60, 100, 121, 121])
    show = plain_lines(Console(stderr=True), lambda: float(next(seconds)))
    for done in range(1, 5):
        show(Progress("epoch [2]", done, 4 if done < 4 else None))
    assert capsys.readouterr().err == "epoch [2]: 2 of 4\nepoch [2]: 4\n"


def test_progress_shows_stage_count_and_rate_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar() as show:
        show(Progress("embed", 3, 10, "a.jpg"))
        show(Progress("embed", 10, 10, "b.jpg"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "embed" in shown.err
    assert "10/10" in shown.err
