"""Progress of a training run on stderr: stdout is for results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from capsearch.ui.output.terminal import remark

if TYPE_CHECKING:
    from capsearch.encoders.training.fit.validation import Epoch
    from capsearch.encoders.training.runs.run import Listener


@contextmanager
def training_progress() -> Iterator[Listener]:
    """A progress bar for the long steps and a line for each epoch."""
    from capsearch.encoders.training.runs.run import Listener
    from capsearch.indexer.progress import Progress
    from capsearch.ui.output.progress import progress_bar

    def line(epoch: Epoch) -> None:
        scores = "  ".join(f"{name} {value:.3f}" for name, value in epoch.validation.items())
        mark = "  best" if epoch.best else ""
        loss = f"epoch {epoch.number}  loss {epoch.loss:.3f}"
        remark(f"{loss}  validation {epoch.metric} {scores}{mark}")

    with progress_bar() as show:
        yield Listener(lambda stage, done, of: show(Progress(stage, done, of, None)), line)
