"""The collections the page offers, each opened once and shared by all who look at it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from capsearch.engine.errors import ModelMismatch
from capsearch.engine.search import SearchEngine
from capsearch.indexer.embedded.collection import CATALOG, Collection, default_index_path
from capsearch.indexer.embedded.facets import Facets, facets
from capsearch.ui.commands.ui import INDEXES_VARIABLE


class Library:
    """An open collection with what the page needs of it again and again."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._lock = threading.Lock()
        self._facets: tuple[int, Facets] | None = None

    def engine(self) -> SearchEngine:
        """A search over the index as it is now."""
        return self.collection.engine()

    def facets(self) -> Facets:
        """What to filter by; counted again only after the index has changed."""
        with self._lock:
            revision = self.collection.catalog.revision()
            if self._facets is None or self._facets[0] != revision:
                self._facets = (revision, facets(self.collection.catalog))
            return self._facets[1]

    def image_count(self) -> int:
        """How many images there are."""
        return int(self.collection.catalog.rows("SELECT count(*) FROM images")[0][0])


def available_indexes() -> Mapping[str, Path]:
    """The collections to choose from by name. A URL can name these and no others."""
    chosen = os.environ.get(INDEXES_VARIABLE, "")
    paths = [Path(path) for path in chosen.split(os.pathsep) if path] or [default_index_path()]
    unique = list(dict.fromkeys(path.absolute() for path in paths))
    seen = Counter(path.name for path in unique)
    return {path.name if seen[path.name] == 1 else str(path): path for path in unique}


def open_library(path: Path) -> Library:
    """The collection at `path`, open already if it can be; the errors of Collection.open."""
    identity = _file_number(path)
    library = _opened(str(path), identity)
    try:
        library.collection.require_same_model()
    except ModelMismatch:  # rebuilt with another model since we opened it
        _opened.clear()
        library = _opened(str(path), identity)
    return library


def _file_number(path: Path) -> int:
    """Changes when an index is deleted and made anew."""
    try:
        return (path / CATALOG).stat().st_ino
    except OSError:
        return 0


@st.cache_resource(show_spinner=False, max_entries=16)
def _opened(path: str, file_number: int) -> Library:
    return Library(Collection.open(Path(path)))
