"""The documentation is true: its Python runs, its links and its commands exist."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from capsearch.ui.cli.demo import collect
from capsearch.ui.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PYTHON = re.compile(r"^```python\n(.+?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`((?:capsearch|engine|encoders|indexer|ui|benchmarks|tests|docs)/[\w./-]+)`")
COMMAND = re.compile(r"(?:^ {4}|`)capsearch ([a-z]+)", re.MULTILINE)


def python_of(page: str) -> str:
    """The blocks of a page as one script."""
    return "\n".join(PYTHON.findall((ROOT / page).read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with three Pictures and an index, which is also the working directory."""
    home = tmp_path_factory.mktemp("home")
    collect(home / "all")
    (home / "Pictures").mkdir()
    for name in ("chelsea.png", "coffee.png", "rocket.jpg"):
        shutil.copy(home / "all" / name, home / "Pictures" / name)
    shutil.copy(home / "all" / "china.jpg", home / "holiday.jpg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("USERPROFILE", str(home))
        patch.setenv("CAPSEARCH_INDEX", str(home / "default"))
        patch.chdir(home)
        yield home


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("README.md", ["caption images: 3 of 3", "chelsea.png", "猫"]),
        ("docs/python.md", ["3 images added", "coffee.png", "コーヒー", "no index at nowhere"]),
    ],
)
def test_the_python_of_the_documentation_runs(
    home: Path, page: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(python_of(page), page, "exec"), {})
    shown = capsys.readouterr().out
    assert [text for text in expected if text not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    inside = [link for link in links if "://" not in link]
    assert [link for link in inside if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    assert set(COMMAND.findall(page.read_text(encoding="utf-8"))) <= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_code_exist(page: Path) -> None:
    named = NAMED.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme[readme.index("## Commands") : readme.index("## Figures")]
    assert {name for name in COMMANDS if f"`{name}" not in table} == set()
