"""The libraries of the page, the panel that chooses one, and indexing in the background.

One run at a time for the whole server; any session polls it.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import streamlit as st

import capsearch
from capsearch.engine.errors import CapsearchError, IndexBusy
from capsearch.engine.records import Progress
from capsearch.indexer.pipeline import IndexSummary
from capsearch.library import Library, Place, default_index
from capsearch.ui.values import printable
from capsearch.ui.web.access import may_index
from capsearch.ui.web.settings import BACKENDS_VARIABLE, INDEXES_VARIABLE
from capsearch.ui.web.texts import NAMES, Texts


def available_places() -> Mapping[str, Place]:
    """The libraries to choose from, by name. A URL of the page can open these and no others."""
    folders = os.environ.get(INDEXES_VARIABLE, "").split(os.pathsep)
    places: list[Place] = [Path(path).absolute() for path in folders if path]
    places += os.environ.get(BACKENDS_VARIABLE, "").split()
    unique = list(dict.fromkeys(places or [default_index().absolute()]))
    names = Counter(_name(place) for place in unique)
    return {_name(place) if names[_name(place)] == 1 else str(place): place for place in unique}


def _name(place: Place) -> str:
    return place.rpartition("/")[2] if isinstance(place, str) else place.name


@st.cache_resource(show_spinner=False, max_entries=16)
def library_at(place: Place) -> Library:
    """The library at a place; all sessions share it."""
    return capsearch.open(place)


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
            library = capsearch.open(place)
            summary = library.index(roots, progress=self._show, stop=stop)
            self._update(state="done", summary=summary)
        except CapsearchError as error:
            self._update(state="failed", error=str(error))
        except Exception as error:  # nothing above a thread would report it
            self._update(state="failed", error=f"{type(error).__name__}: {error}")

    def _show(self, progress: Progress) -> None:
        self._update(progress=progress)

    def _update(self, **changes: object) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]


POLL_S = 0.7
MAX_SKIPPED_SHOWN = 20


@st.cache_resource(show_spinner=False)
def background() -> Indexing:
    """The background indexing of this server; all sessions share it."""
    return Indexing()


def header(texts: Texts, collections: Sequence[str], where: Place, library: Library | None) -> None:
    """The first line of the page: its name, the library panel and the page language."""
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.container(key="wordmark", width="content").text("capsearch")
        st.container(key="quiet_tagline", width="stretch").text(texts.tagline)
        with st.popover(texts.library, icon=":material/photo_library:"):
            _library(texts, collections, where, library)
        st.selectbox(
            texts.interface_language,
            tuple(NAMES),
            key="interface",
            format_func=NAMES.__getitem__,
            label_visibility="collapsed",
            width=110,
        )


def _library(
    texts: Texts, collections: Sequence[str], where: Place, library: Library | None
) -> None:
    st.selectbox(texts.collection, collections, key="collection", format_func=printable)
    if library is not None:
        st.caption(texts.images_count.format(count=f"{len(library):,}"))
        st.text("\n".join(printable(str(root)) for root in library.roots()))
    if may_index():
        _panel(texts, where, has_roots=library is not None)
    else:
        st.caption(texts.token_needed)


def _panel(texts: Texts, where: Place, has_roots: bool) -> None:
    running = background().status.state == "running"
    st.fragment(_status_or_form, run_every=POLL_S if running else None)(texts, where, has_roots)


def _status_or_form(texts: Texts, where: Place, has_roots: bool) -> None:
    """The run in progress, or the form to start one; the whole page reruns when a run ends."""
    status = background().status
    current = (status.number, status.state)
    previous = st.session_state.get("run_shown", current)
    st.session_state["run_shown"] = current
    if status.state == "running":
        _progress(texts, status)
    else:
        _form(texts, where, has_roots)
        _outcome(texts, status)
    if previous != current:
        st.rerun()


def _form(texts: Texts, where: Place, has_roots: bool) -> None:
    folder = st.text_input(texts.add_folder, key="folder_to_index", help=texts.add_folder_help)
    with st.container(horizontal=True):
        if st.button(texts.add_folder_button, type="primary"):
            _start(texts, where, folder)
        if has_roots and st.button(texts.refresh):
            _begin(texts, where, ())


def _start(texts: Texts, where: Place, folder: str) -> None:
    chosen = Path(folder.strip()).expanduser()
    if not folder.strip() or not chosen.is_dir():
        st.error(texts.not_a_folder)
        return
    _begin(texts, where, (chosen.absolute(),))


def _begin(texts: Texts, where: Place, roots: Sequence[Path]) -> None:
    try:
        background().start(where, roots)
    except IndexBusy:
        st.warning(texts.already_indexing)
        return
    st.rerun()


def _progress(texts: Texts, status: Status) -> None:
    progress = status.progress
    done, total = (progress.done, progress.total) if progress else (0, None)
    fraction = min(done / total, 1.0) if total else 0.0
    st.progress(fraction, f"{texts.indexing}: {done:,}" + (f" / {total:,}" if total else ""))
    if progress is not None and progress.current:
        st.container(key="quiet_current").text(printable(Path(progress.current).name))
    st.button(texts.stop, on_click=background().stop)


def _outcome(texts: Texts, status: Status) -> None:
    if status.state == "failed":
        st.error(texts.problem)
        st.text(printable(status.error or ""))
    if status.summary is None:
        return
    summary = status.summary
    outcome = texts.stopped if summary.interrupted else texts.indexed
    st.success(
        outcome.format(added=summary.added, unchanged=summary.unchanged, removed=summary.removed)
    )
    if summary.skipped:
        st.caption(texts.skipped.format(count=len(summary.skipped)))
        lines = (f"{file.path}: {file.reason}" for file in summary.skipped[:MAX_SKIPPED_SHOWN])
        st.text("\n".join(printable(line) for line in lines))
