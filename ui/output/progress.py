"""A progress bar on stderr, with images per second and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from capsearch.ui.output.terminal import printable

if TYPE_CHECKING:
    from capsearch.indexer.progress import Progress


SECONDS_A_LINE = 60.0


class RateColumn(ProgressColumn):
    """Items per second over the last 30 seconds."""

    def render(self, task: Task) -> Text:
        """'148.2/s'; empty before the first items are done."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f}/s", style="progress.data.speed")


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Yields a callback that draws one bar a stage; in a log file, it writes a line a minute."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield plain_lines(console)
        return
    bars = Bars(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    tasks: dict[str, TaskID] = {}

    def show(progress: Progress) -> None:
        if progress.stage not in tasks:
            name = printable(progress.stage)  # may contain the name of a data set's split
            tasks[progress.stage] = bars.add_task(name, total=progress.total)
        bars.update(tasks[progress.stage], completed=progress.done, total=progress.total)

    with bars:
        yield show


@contextmanager
def counter(stage: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback (done, of) that draws the bar of one stage."""
    from capsearch.indexer.progress import Progress

    with progress_bar() as show:
        yield lambda done, total: show(Progress(stage, done, total, None))


def plain_lines(
    console: Console, clock: Callable[[], float] = time.monotonic
) -> Callable[[Progress], None]:
    """A callback for log files: one line a minute, so none for short runs."""
    last = clock()

    def show(progress: Progress) -> None:
        nonlocal last
        if clock() - last < SECONDS_A_LINE:
            return
        last = clock()
        of = f" of {progress.total}" if progress.total else ""
        line = f"{printable(progress.stage)}: {progress.done}{of}"
        console.print(line, markup=False, highlight=False)

    return show
