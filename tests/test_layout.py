"""The shape of the repository: folders, what may import what, and how long a file may be."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
MAX_LINES = 600
MAX_FUNCTION_LINES = 40
# A file under this is a satellite of the idea beside it, unless here is a reason.
MIN_LINES = 60
SHORT = {
    "capsearch/__main__.py": "`python -m capsearch`",
    "ui/values.py": "what the terminal and the page share",
}
MAY_IMPORT = {
    "engine": {"engine"},
    "encoders": {"engine", "encoders"},
    "indexer": {"engine", "encoders", "indexer"},
    "capsearch": {"engine", "encoders", "indexer", "library"},
    "ui": {"engine", "encoders", "indexer", "library", "ui"},
    "benchmarks": {"engine", "encoders", "indexer", "library", "benchmarks"},
}
SERVING = ("encoders/text", "encoders/images", "encoders/models")
RESEARCH = tuple(
    f"capsearch.encoders.{name}" for name in ("data", "train", "calibrate", "settings")
)
RUN = re.compile(r"capsearch\.encoders\.train\.(\w+_)?run\b")  # what a command starts
# `capsearch bench` is a command like any other, and its modules are how ui reaches benchmarks.
EXCEPTIONS = {
    ("ui/cli/bench.py", "benchmarks"),
    ("ui/cli/models.py", "benchmarks"),
    ("capsearch/__main__.py", "ui"),
}
ENGINE_NEEDS_ONLY = {"numpy"}
# What the command line and the page may import: the front door, and nouns that it gives or takes.
FRONT_DOOR = ("capsearch.library.", "capsearch.engine.", "capsearch.ui.")
BEHIND_THE_DOOR = {
    "capsearch.encoders.images.open.HEIF_SUFFIXES",  # what the upload field takes
    "capsearch.encoders.images.open.IMAGE_SUFFIXES",
    "capsearch.encoders.models.describe.Description",
    "capsearch.encoders.text.concepts",  # names of tags in the reader's language
    "capsearch.indexer.enrichment.EnrichSummary",
    "capsearch.indexer.roots.Forgettable",
    "capsearch.indexer.pipeline.IndexSummary",
    "capsearch.indexer.sources.charsets.read_text",  # of a file that the user names
    "capsearch.indexer.sources.scan.Skipped",
}
# Commands that train, measure and manage models import what they manage.
MANAGES = re.compile(r"ui/cli/(bench|models|progress|train)\w*\.py")
SQL = re.compile(
    r"\b(SELECT\s.+\sFROM\s|INSERT\s+(OR\s+\w+\s+)?INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s"
    r"|(CREATE|DROP|ALTER)\s+(TABLE|INDEX)\s|PRAGMA\s)",
    re.DOTALL,
)


def modules(folder: str) -> list[Path]:
    """Those of a folder; the data packages in encoders/ have pyproject files of their own."""
    return sorted(
        path
        for path in (ROOT / folder).rglob("*.py")
        if not {"unidic", "weights", "weights-more"} & set(path.parts)
    )


@cache
def imported_names(module: Path) -> tuple[str, ...]:
    """Absolute names a module imports anywhere; there are no relative imports."""
    return tuple(_imports(module))


def _imports(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: import by the full name, capsearch.…"
            assert node.module is not None
            yield node.module
            if node.module.split(".")[0] == "capsearch":  # what is imported may be a module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folders_imported(module: Path) -> set[str]:
    names = (name.split(".") for name in imported_names(module))
    return {parts[1] for parts in names if parts[0] == "capsearch" and len(parts) > 1}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_one_way(folder: str) -> None:
    wrong = {
        (str(module.relative_to(ROOT)), other)
        for module in modules(folder)
        for other in folders_imported(module) - MAY_IMPORT[folder]
    }
    assert wrong - EXCEPTIONS == set()


def test_sources_do_not_import_the_embedded_backend() -> None:
    users = {
        str(module.relative_to(ROOT))
        for module in modules("indexer/sources")
        if any(name.startswith("capsearch.indexer.sqlite") for name in imported_names(module))
    }
    assert users == set()


def test_the_two_stores_know_nothing_of_each_other() -> None:
    """But for copying from one to the other."""
    wrong = {
        (str(module.relative_to(ROOT)), name)
        for one, other in (("elastic", "sqlite"), ("sqlite", "elastic"))
        for module in modules(f"indexer/{one}")
        for name in imported_names(module)
        if name.startswith(f"capsearch.indexer.{other}.")
    }
    assert {module for module, _ in wrong} == {"indexer/elastic/copy.py"}


def test_engine_needs_nothing_but_the_standard_library_and_numpy() -> None:
    outside = {
        name.split(".")[0] for module in modules("engine") for name in imported_names(module)
    }
    assert outside - set(sys.stdlib_module_names) - ENGINE_NEEDS_ONLY - {"capsearch"} == set()


def test_the_search_page_imports_no_command() -> None:
    page = modules("ui/web")
    wrong = {
        (str(module.relative_to(ROOT)), name)
        for module in page
        for name in imported_names(module)
        if f"{name}.".startswith("capsearch.ui.cli.")
    }
    assert wrong == set()


def test_the_command_line_and_the_page_use_the_front_door() -> None:
    names = {
        (path, name)
        for module in modules("ui")
        if not MANAGES.fullmatch(path := str(module.relative_to(ROOT)))
        for name in imported_names(module)
        if name.startswith("capsearch.") and not f"{name}.".startswith(FRONT_DOOR)
    }
    modules_of_names = {(path, name.rpartition(".")[0]) for path, name in names}
    wrong = {(path, name) for path, name in names - modules_of_names if name not in BEHIND_THE_DOOR}
    assert wrong == set()


def test_ui_contains_no_sql() -> None:
    assert SQL.search('rows("SELECT count(*) FROM images")')  # the pattern finds statements
    users = {
        str(module.relative_to(ROOT))
        for module in modules("ui")
        if SQL.search(module.read_text(encoding="utf-8")) or "sqlite3" in imported_names(module)
    }
    assert users == set()


def test_every_file_in_the_drawing_of_the_readme_exists() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (drawing,) = re.findall(r"^```text\n(.+?)^```$", readme, re.DOTALL | re.MULTILINE)
    named = re.findall(r"[\w/]+\.py\b", drawing)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_packages_in_pyproject_are_the_folders_on_disk() -> None:
    listed = setuptools_settings()["package-dir"]
    on_disk = {
        package_of(init.parent): init.parent.relative_to(ROOT).as_posix()
        for folder in MAY_IMPORT
        for init in modules(folder)
        if init.name == "__init__.py"
    }
    assert listed == on_disk
    assert sorted(setuptools_settings()["packages"]) == sorted(on_disk)


def package_of(folder: Path) -> str:
    name = ".".join(folder.relative_to(ROOT).parts)
    return name if name == "capsearch" else f"capsearch.{name}"


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {module.parent for folder in MAY_IMPORT for module in modules(folder)}
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_types_are_published(folder: str) -> None:
    assert (ROOT / folder / "py.typed").exists()


def lines_of(folders: Iterable[str]) -> dict[str, int]:
    return {
        str(module.relative_to(ROOT)): len(module.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for module in modules(folder)
    }


def test_no_file_is_too_long_to_hold_one_idea() -> None:
    lines = lines_of((*MAY_IMPORT, "tests"))
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_a_short_file_has_a_reason() -> None:
    short = {
        name
        for name, count in lines_of(MAY_IMPORT).items()
        if count < MIN_LINES and not name.endswith("__init__.py")
    }
    assert short == set(SHORT)


def test_no_function_is_too_long_to_read_at_once() -> None:
    long = {
        f"{module.relative_to(ROOT)}:{node.name}": length
        for folder in MAY_IMPORT
        for module in modules(folder)
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := body_lines(node)) > MAX_FUNCTION_LINES
    }
    assert long == {}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last; options are declarations."""
    statements = function.body[1:] if ast.get_docstring(function) else function.body
    if not statements:
        return 0
    assert function.end_lineno is not None
    return function.end_lineno - statements[0].lineno + 1


def test_what_serves_imports_no_research() -> None:
    wrong = {
        (str(module.relative_to(ROOT)), name)
        for folder in SERVING
        for module in modules(folder)
        for name in imported_names(module)
        if name.startswith(RESEARCH)
    }
    assert wrong == set()


def test_networks_losses_and_loops_know_no_runs() -> None:
    wrong = {
        (module.stem, name)
        for module in modules("encoders/train")
        if not re.fullmatch("(.+_)?run", module.stem)
        for name in imported_names(module)
        if RUN.match(name)
    }
    assert wrong == set()


def test_nothing_is_called_utils_or_helpers() -> None:
    names = {module.stem for folder in MAY_IMPORT for module in modules(folder)}
    assert names & {"utils", "util", "helpers", "helper", "misc", "common"} == set()


def test_nothing_is_pickled() -> None:
    pickling = {"pickle", "dill", "joblib", "shelve", "marshal"}
    users = {
        str(module.relative_to(ROOT))
        for folder in MAY_IMPORT
        for module in modules(folder)
        if pickling & {name.split(".")[0] for name in imported_names(module)}
    }
    assert users == set()


def test_every_package_imported_is_declared() -> None:
    owners = packages_distributions()
    used = {
        owner
        for folder in MAY_IMPORT
        for module in modules(folder)
        for name in imported_names(module)
        for owner in owners.get(name.split(".")[0], ())
    }
    project = pyproject()["project"]
    extras = project["optional-dependencies"].values()
    declared = {
        re.split("[^\\w.-]", line)[0]
        for lines in (project["dependencies"], *extras)
        for line in lines
    }
    assert {canonical(one) for one in used} <= {canonical(one) for one in declared} | {"capsearch"}


def canonical(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def setuptools_settings() -> dict[str, Any]:
    settings: dict[str, Any] = pyproject()["tool"]["setuptools"]
    return settings
