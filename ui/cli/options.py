"""Options that several commands share."""

from __future__ import annotations

import calendar
import os
import re
from collections.abc import Callable
from datetime import date
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

F = TypeVar("F", bound=Callable[..., Any])
SHEET_MARK = b"capsearch contact sheet"  # in the head of a sheet (hits.py)
_HEAD = 4096  # bytes; what capsearch writes says so within these


class OutputFile(click.Path):
    """A file to write: a new one, an empty one, or one with `mark` near its start.

    The mark is what capsearch writes into its own files, so that a mistyped option or a file name
    that a shell completed never overwrites a photograph. Without a mark only new files may be
    written.
    """

    def __init__(self, mark: bytes | None = None) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.mark = mark

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; BadParameter if it names anything that capsearch did not write."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if os.path.lexists(path) and not self._is_ours(path):
            self.fail(f"{path} exists and is not overwritten; choose another name", param, ctx)
        return path

    def _is_ours(self, path: Path) -> bool:
        if not path.is_file() or path.is_symlink():  # reading a named pipe would wait for ever
            return False
        with path.open("rb") as file:
            head = file.read(_HEAD)
        return not head or (self.mark is not None and self.mark in head)


def place_options(command: F) -> F:
    """--index and --backend, of which the command gets the `place` to open; None: the default."""

    @wraps(command)
    def with_place(index_path: Path | None, backend: str | None, **options: Any) -> Any:
        return command(place=index_path or backend, **options)

    index = click.option(
        "--index",
        "index_path",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder of the index.  [default: $CAPSEARCH_INDEX, or your data directory]",
    )
    backend = click.option(
        "--backend",
        envvar="CAPSEARCH_BACKEND",
        metavar="URL",
        help="Collection in Elasticsearch, https://HOST:9200/NAME, in place of an index folder; "
        "see docs/cluster.md.  [default: $CAPSEARCH_BACKEND, unless --index is given]",
    )
    return cast(F, index(backend(with_place)))


shards_option: Callable[[F], F] = click.option(
    "--shards",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Parts of a new collection in a cluster.",
)
replicas_option: Callable[[F], F] = click.option(
    "--replicas",
    type=click.IntRange(0, 16),
    default=1,
    show_default=True,
    help="Copies of each part of a new collection on other nodes of the cluster.",
)
batch_size_option: Callable[[F], F] = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    metavar="IMAGES",
    help="How many images are encoded and saved at once. A larger batch may be faster and needs "
    "more memory; an interrupted run loses at most one batch.",
)
verbose_option: Callable[[F], F] = click.option(
    "--verbose", is_flag=True, help="Name every skipped file, also of large groups."
)
decode_threads_option: Callable[[F], F] = click.option(
    "--decode-threads",
    type=click.IntRange(min=1),
    show_default="one per core",
    metavar="THREADS",
    help="How many threads read and decode image files ahead of the model. Fewer need less "
    "memory; more may help when the files are on a slow disk.",
)
json_option: Callable[[F], F] = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."
)

model_option: Callable[[F], F] = click.option(
    "--model",
    "name",
    metavar="NAME",
    help="Name or path (./DIR) of the model.  [default: the built-in one]",
)


def first_day(value: str) -> date:
    """The first day of a year, month or day: 2024, 2024-05 or 2024-05-31."""
    year, month, day = _parts(value)
    return _date(value, year, month or 1, day or 1)


def last_day(value: str) -> date:
    """The last day of a year, month or day: 2024, 2024-05 or 2024-05-31."""
    year, month, day = _parts(value)
    first = _date(value, year, month or 12, day or 1)
    return first if day else first.replace(day=calendar.monthrange(first.year, first.month)[1])


def _parts(value: str) -> tuple[int, int | None, int | None]:
    match = re.fullmatch(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a date; write 2024, 2024-05 or 2024-05-31")
    year, month, day = match.groups()
    return int(year), int(month) if month else None, int(day) if day else None


def _date(value: str, year: int, month: int, day: int) -> date:
    try:
        return date(year, month, day)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a date: {error}") from error
