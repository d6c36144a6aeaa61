"""docs/promises.md names a test for every promise, and the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECTIONS = ("Lost data", "Wrong results", "Let in", "Day one", "At any moment")
ROW = re.compile(r"\| .+ \| \[`(test_\w+)`\]\(\.\./(tests/\S+\.py)\) \|")


def test_every_promise_has_a_test() -> None:
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    assert re.findall("^## (.+)$", text, re.MULTILINE) == list(SECTIONS)
    lines = [line for line in text.splitlines() if line.startswith("| ") and "| Test |" not in line]
    rows = [ROW.fullmatch(line) for line in lines]
    assert [line for line, row in zip(lines, rows, strict=True) if row is None] == []
    assert len(rows) >= 60
    for row in filter(None, rows):
        test, path = row.groups()
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_promises_speak_for_themselves() -> None:
    assert "issue" not in (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").lower()
