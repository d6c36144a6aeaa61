"""Indexing in the background: one run at a time for the whole server; any session polls it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from capsearch.engine.errors import CapsearchError, IndexBusy
from capsearch.indexer.enrichment import enrich
from capsearch.indexer.pipeline import IndexSummary, index
from capsearch.indexer.progress import Progress
from capsearch.ui.opening import AnyCollection, Place, create_at


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the latest run. `number` counts the runs of this server."""

    state: Literal["idle", "running", "done", "failed"] = "idle"
    number: int = 0
    progress: Progress | None = None
    summary: IndexSummary | None = None
    error: str | None = None


class Indexing:
    """Runs `capsearch index` in a thread. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._status = Status()

    @property
    def status(self) -> Status:
        """A snapshot."""
        with self._lock:
            return self._status

    def start(self, place: Place, roots: Sequence[Path]) -> threading.Thread:
        """Index `roots`, or the folders indexed before if none are given.

        Raises IndexBusy while another run is in progress.
        """
        with self._lock:
            if self._status.state == "running":
                raise IndexBusy("another folder is being indexed; wait until it is done")
            self._stop = threading.Event()
            self._status = Status("running", self._status.number + 1)
        worker = threading.Thread(
            target=self._run, args=(place, tuple(roots), self._stop), daemon=True
        )
        worker.start()
        return worker

    def stop(self) -> None:
        """End the run after the current batch."""
        self._stop.set()

    def _run(self, place: Place, roots: Sequence[Path], stop: threading.Event) -> None:
        try:
            with create_at(place) as collection:
                chosen = roots or collection.roots()
                summary = index(collection, chosen, progress=self._show, stop=stop)
                if not stop.is_set():
                    self._enrich(collection, stop)
            self._update(state="done", summary=summary)
        except CapsearchError as error:
            self._update(state="failed", error=str(error))
        except Exception as error:  # nothing above a thread would report it
            self._update(state="failed", error=f"{type(error).__name__}: {error}")

    def _enrich(self, collection: AnyCollection, stop: threading.Event) -> None:
        if collection.model.enricher():
            enrich(collection, progress=self._show, stop=stop)

    def _show(self, progress: Progress) -> None:
        self._update(progress=progress)

    def _update(self, **changes: object) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]
