"""docs/promises.md names tests that exist, for every item of issue 11."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"\| (\d*) \| .+ \| \[`(test_\w+)`\]\(\.\./(tests/\S+\.py)\) \|")


def test_every_promise_has_a_test() -> None:
    rows = ROW.findall((ROOT / "docs" / "promises.md").read_text(encoding="utf-8"))
    assert {int(number) for number, _, _ in rows if number} == set(range(1, 21))
    for _, test, path in rows:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"
