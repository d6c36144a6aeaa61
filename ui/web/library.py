"""The collections the page can search, each opened once and shared by all sessions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from capsearch.engine.errors import ModelMismatch
from capsearch.engine.records import Facets
from capsearch.engine.search import SearchEngine
from capsearch.indexer.embedded.collection import CATALOG, Collection, default_index_path
from capsearch.ui.web.settings import INDEXES_VARIABLE


class Library:
    """An open collection."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    def engine(self) -> SearchEngine:
        """A search over the index as it is now."""
        return self.collection.engine()

    def facets(self) -> Facets:
        """The values to filter by."""
        return self.collection.backend.facets()

    def image_count(self) -> int:
        """How many images the collection holds."""
        return len(self.collection.backend)


def available_indexes() -> Mapping[str, Path]:
    """The collections to choose from, by name. A URL can open these and no others."""
    chosen = os.environ.get(INDEXES_VARIABLE, "")
    paths = [Path(path) for path in chosen.split(os.pathsep) if path] or [default_index_path()]
    unique = list(dict.fromkeys(path.absolute() for path in paths))
    names = Counter(path.name for path in unique)
    return {path.name if names[path.name] == 1 else str(path): path for path in unique}


def open_library(path: Path) -> Library:
    """The collection at `path`, opened now or before; raises what Collection.open raises."""
    inode = _catalog_inode(path)
    library = _opened(str(path), inode)
    try:
        library.collection.require_same_model()
    except ModelMismatch:  # rebuilt with another model since it was opened
        _opened.clear()
        library = _opened(str(path), inode)
    return library


def _catalog_inode(path: Path) -> int:
    """Changes when an index is deleted and created again; 0 where there is none."""
    try:
        return (path / CATALOG).stat().st_ino
    except OSError:
        return 0


@st.cache_resource(show_spinner=False, max_entries=16)
def _opened(path: str, inode: int) -> Library:
    return Library(Collection.open(Path(path)))
