"""`make demo`: index a few images that come with Python packages, and search them.

The images are part of scikit-image and scikit-learn; they are copied from the installed
packages, which are never imported. Exits with 1 if a query does not rank its image first.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

import capsearch
from capsearch.engine.errors import DataProblem
from capsearch.ui.cli import main as commands
from capsearch.ui.cli.terminal import remark

IMAGES: Mapping[str, tuple[str, ...]] = {
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
    """A query of the demo, and the image that should be the first hit."""

    text: str
    expected: str


SEARCHES = (
    Search("一只猫的特写", "chelsea.png"),
    Search("木のテーブルの上のコーヒーカップ", "coffee.png"),
    Search("a motorcycle parked in a garage", "motorcycle_left.png"),
)


def collect(folder: Path) -> None:
    """Copy the images into `folder`; DataProblem if a package or a file is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, names in IMAGES.items():
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
    """The file name of the first hit, or None without one."""
    with capsearch.open(index) as library:
        return next((Path(hit.path).name for hit in library.search(text, limit=1)), None)


def demo(folder: Path) -> int:
    """Index and search below `folder`, printing each command; returns the exit code."""
    images, index = folder / "images", folder / "index"
    collect(images)
    if code := _show(["index", str(images), "--index", str(index)]):
        return code
    correct = 0
    for text, expected in SEARCHES:
        if code := _show(["query", text, "--index", str(index), "--limit", "3"]):
            return code
        correct += first_hit(text, index) == expected
    click.echo(f"\n{correct} of {len(SEARCHES)} queries found their image first")
    return 0 if correct == len(SEARCHES) else 1


def _show(arguments: Sequence[str]) -> int:
    click.echo(f"\n$ capsearch {shlex.join(arguments)}")
    sys.stdout.flush()
    return commands.main(arguments)


def main(argv: Sequence[str]) -> int:
    """`python -m capsearch.ui.cli.demo FOLDER`."""
    try:
        return demo(Path(argv[0] if argv else ".demo"))
    except DataProblem as error:
        remark(f"demo: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
