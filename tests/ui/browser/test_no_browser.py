"""What the browser tests do on a machine without a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NO_CHROMIUM

PROBE = Path(__file__).with_name("test_browser_safety.py")


def run_browser_tests(tmp_path: Path, ci: str) -> subprocess.CompletedProcess[str]:
    """One browser test in another process, whose $PATH has no chromium."""
    environment = {**os.environ, "PATH": str(tmp_path), "CI": ci}
    environment.pop("CHROMIUM", None)
    options = ["-p", "no:cacheprovider", "-k", "offered"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(PROBE)],
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("ci", ["true", "1", "True"])
def test_in_ci_they_fail_with_one_line(tmp_path: Path, ci: str) -> None:
    """Browser tests were skipped in CI, so nobody noticed that they never ran."""
    ran = run_browser_tests(tmp_path, ci)
    assert ran.returncode == 1
    assert NO_CHROMIUM in ran.stdout.splitlines()
    assert "conftest.py" not in ran.stdout  # no traceback


@pytest.mark.parametrize("ci", ["", "false", "0"])
def test_elsewhere_they_are_skipped(tmp_path: Path, ci: str) -> None:
    ran = run_browser_tests(tmp_path, ci)
    assert ran.returncode == 0, ran.stdout
    assert "skipped" in ran.stdout
