"""Options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

index_option: Callable[[F], F] = click.option(
    "--index",
    "index_path",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the index lives.  [default: $CAPSEARCH_INDEX, or your data directory]",
)
json_option: Callable[[F], F] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on stdout."
)


def index_path_or_default(path: Path | None) -> Path:
    """The index a command works on when nobody named one."""
    from capsearch.indexer.collection import default_index_path

    return default_index_path() if path is None else path


class Day(click.ParamType):
    """A date as 2024, 2024-05 or 2024-05-31: the first or the last day of what was given."""

    name = "date"

    def __init__(self, *, last: bool) -> None:
        self._last = last

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> date:
        """The day meant, or a usage error."""
        if isinstance(value, date):
            return value
        found = re.fullmatch(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?", str(value))
        if found is None:
            self.fail(f"{value!r} is not a date; write 2024, 2024-05 or 2024-05-31", param, ctx)
        try:
            return self._day(*(int(part) if part else None for part in found.groups()))
        except ValueError as error:
            self.fail(f"{value!r} is not a date: {error}", param, ctx)

    def _day(self, year: int | None, month: int | None, day: int | None) -> date:
        assert year is not None  # the pattern has no match without it
        month = month or (12 if self._last else 1)
        first = date(year, month, day or 1)
        if day or not self._last:
            return first
        return first.replace(day=calendar.monthrange(year, month)[1])
