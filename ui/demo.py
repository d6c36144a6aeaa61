"""`make demo`: index a few photographs that come with Python packages, and search them.

The photographs are scikit-image's and scikit-learn's; both packages are only looked into,
never imported. Exits with 1 if a query does not find its image first.
"""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

from capsearch.engine.errors import DataProblem
from capsearch.ui.cli import main as capsearch

PHOTOGRAPHS: Mapping[str, tuple[str, ...]] = {
    "skimage/data": (
        "astronaut.png",
        "brick.png",
        "camera.png",
        "chelsea.png",
        "clock_motion.png",
        "coffee.png",
        "coins.png",
        "grass.png",
        "gravel.png",
        "hubble_deep_field.jpg",
        "moon.png",
        "motorcycle_left.png",
        "rocket.jpg",
    ),
    "sklearn/datasets/images": ("china.jpg", "flower.jpg"),
}


class Search(NamedTuple):
    """A query of the demo, and the photograph it should find first."""

    text: str
    expected: str


SEARCHES = (
    Search("一只猫的特写", "chelsea.png"),
    Search("木のテーブルの上のコーヒーカップ", "coffee.png"),
    Search("a motorcycle parked in a garage", "motorcycle_left.png"),
)


def collect(folder: Path) -> None:
    """Copy the photographs into `folder`; DataProblem when a package or a file is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, names in PHOTOGRAPHS.items():
        source = _package_folder(place)
        for name in names:
            if not (source / name).is_file():
                raise DataProblem(
                    f"{source / name} is missing; reinstall scikit-image, scikit-learn"
                )
            shutil.copyfile(source / name, folder / name)


def _package_folder(place: str) -> Path:
    package, _, inside = place.partition("/")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataProblem(f"the demo needs {package}: pip install scikit-image scikit-learn")
    return Path(spec.submodule_search_locations[0]) / inside


def first_hit(text: str, index: Path) -> str | None:
    """The name of the best image for a query, or None when there is no answer."""
    answer = io.StringIO()
    with redirect_stdout(answer):
        code = capsearch(["query", text, "--index", str(index), "--limit", "1", "--json"])
    hits = json.loads(answer.getvalue())["hits"] if code == 0 else []
    return Path(hits[0]["path"]).name if hits else None


def demo(folder: Path) -> int:
    """Index and search below `folder`, showing each command; the exit code."""
    photos, index = folder / "photos", folder / "index"
    collect(photos)
    if code := _show(["index", str(photos), "--index", str(index)]):
        return code
    right = 0
    for text, expected in SEARCHES:
        if code := _show(["query", text, "--index", str(index), "--limit", "3"]):
            return code
        right += first_hit(text, index) == expected
    click.echo(f"\n{right} of {len(SEARCHES)} queries found their image first")
    return 0 if right == len(SEARCHES) else 1


def _show(arguments: Sequence[str]) -> int:
    click.echo(f"\n$ capsearch {shlex.join(arguments)}")
    sys.stdout.flush()
    return capsearch(arguments)


def main(argv: Sequence[str]) -> int:
    """`python -m capsearch.ui.demo FOLDER`."""
    try:
        return demo(Path(argv[0] if argv else ".demo"))
    except DataProblem as error:
        click.echo(f"demo: {error}", err=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
