"""Progress of a run on stderr: a bar, plain lines, and the first Ctrl-C, which ends it gently."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
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

from capsearch.engine.records import Progress
from capsearch.ui.cli.terminal import remark
from capsearch.ui.values import printable

if TYPE_CHECKING:
    from capsearch.encoders.train.loop import Epoch
    from capsearch.encoders.train.run import Listener


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
def stage_progress(stage: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback (done, of) that draws one bar."""
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
        console.print(printable(str(progress)), markup=False, highlight=False)

    return show


@contextmanager
def training_progress() -> Iterator[Listener]:
    """A progress bar for the long steps and a line for each epoch."""
    from capsearch.encoders.train.run import Listener

    def line(epoch: Epoch) -> None:
        scores = "  ".join(f"{name} {value:.3f}" for name, value in epoch.validation.items())
        mark = "  best" if epoch.best else ""
        loss = f"epoch {epoch.number}  loss {epoch.loss:.3f}"
        remark(f"{loss}  validation {epoch.metric} {scores}{mark}")

    with progress_bar() as show:
        yield Listener(lambda stage, done, of: show(Progress(stage, done, of, None)), line)


INTERRUPTED = 130  # the exit status


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one interrupts as usual."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals reach the main thread only
        return

    def first(signum: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        remark("finishing the current batch; Ctrl-C again to discard it")

    before = signal.signal(signal.SIGINT, first)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
