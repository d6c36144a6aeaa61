"""Find images with a sentence in Chinese, Japanese or English, offline.

    import capsearch

    with capsearch.open() as library:  # the default index; a path; an Elasticsearch URL
        library.index(["~/Pictures"], progress=print)
        for hit in library.search("a cat on a laptop", limit=5):
            print(hit.score, hit.path, hit.caption("en"), hit.tags("en"))
    capsearch.describe("holiday.jpg")  # captions and tags without an index

The errors are in a tree: see `capsearch.engine.errors`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

# In a checkout the other folders lie beside this one, and not in it as when they are installed:
# python that is started there finds this folder first.
_CHECKOUT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
if os.path.isfile(os.path.join(_CHECKOUT, "pyproject.toml")):  # noqa: PTH113, PTH118
    __path__.append(_CHECKOUT)

from capsearch.engine.errors import (  # noqa: E402
    CapsearchError,
    DataProblem,
    IndexBusy,
    IndexEmpty,
    IndexMissing,
    IndexProblem,
    InvalidCaptions,
    InvalidImage,
    InvalidQuery,
    MissingExtra,
    MissingSplit,
    ModelMismatch,
    NotAnIndex,
    RootUnavailable,
    SchemaTooNew,
    SchemaTooOld,
    TrainingProblem,
    UnknownLanguage,
    UnknownModel,
    WriteFailed,
)

if TYPE_CHECKING:
    from capsearch.engine.query import Query
    from capsearch.engine.records import Caption, Filters, Hit, Tag
    from capsearch.indexer.pipeline import IndexOptions
    from capsearch.library import Library, describe, open

    __version__: str

__all__ = [
    "CapsearchError",
    "Caption",
    "DataProblem",
    "Filters",
    "Hit",
    "IndexBusy",
    "IndexEmpty",
    "IndexMissing",
    "IndexOptions",
    "IndexProblem",
    "InvalidCaptions",
    "InvalidImage",
    "InvalidQuery",
    "Library",
    "MissingExtra",
    "MissingSplit",
    "ModelMismatch",
    "NotAnIndex",
    "Query",
    "RootUnavailable",
    "SchemaTooNew",
    "SchemaTooOld",
    "Tag",
    "TrainingProblem",
    "UnknownLanguage",
    "UnknownModel",
    "WriteFailed",
    "__version__",
    "describe",
    "open",
]

# Imported when they are first used: `capsearch --help` needs none of them, not even numpy.
_MODULES: Mapping[str, str] = {
    "Caption": "capsearch.engine.records",
    "Filters": "capsearch.engine.records",
    "Hit": "capsearch.engine.records",
    "IndexOptions": "capsearch.indexer.pipeline",
    "Library": "capsearch.library",
    "Query": "capsearch.engine.query",
    "Tag": "capsearch.engine.records",
    "describe": "capsearch.library",
    "open": "capsearch.library",
}

if not TYPE_CHECKING:  # for a type checker, it would make every name an attribute

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return import_module("importlib.metadata").version("capsearch")
        if name not in _MODULES:
            raise AttributeError(f"module 'capsearch' has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
