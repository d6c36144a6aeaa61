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
from capsearch.indexer.sqlite.collection import CATALOG, default_index_path
from capsearch.ui.opening import AnyCollection, Place, open_at
from capsearch.ui.web.settings import BACKENDS_VARIABLE, INDEXES_VARIABLE


class Library:
    """An open collection."""

    def __init__(self, collection: AnyCollection) -> None:
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


def available_indexes() -> Mapping[str, Place]:
    """The collections to choose from, by name. A URL can open these and no others."""
    folders = os.environ.get(INDEXES_VARIABLE, "").split(os.pathsep)
    places: list[Place] = [Path(path).absolute() for path in folders if path]
    places += os.environ.get(BACKENDS_VARIABLE, "").split()
    unique = list(dict.fromkeys(places or [default_index_path().absolute()]))
    names = Counter(_name(place) for place in unique)
    return {_name(place) if names[_name(place)] == 1 else str(place): place for place in unique}


def open_library(place: Place) -> Library:
    """The collection at a place, opened now or before; raises what open_at raises."""
    inode = _catalog_inode(place) if isinstance(place, Path) else 0
    library = _opened(place, inode)
    try:
        library.collection.require_same_model()
    except ModelMismatch:  # rebuilt with another model since it was opened
        _opened.clear()
        library = _opened(place, inode)
    return library


def _name(place: Place) -> str:
    return place.rpartition("/")[2] if isinstance(place, str) else place.name


def _catalog_inode(path: Path) -> int:
    """Changes when an index is deleted and created again; 0 where there is none."""
    try:
        return (path / CATALOG).stat().st_ino
    except OSError:
        return 0


@st.cache_resource(show_spinner=False, max_entries=16)
def _opened(place: Place, inode: int) -> Library:
    return Library(open_at(place))
