"""Every error capsearch raises on purpose.

CapsearchError
├── InvalidQuery        nothing to search for, or a mode the query cannot have
├── UnknownLanguage     a language no installed model reads
├── UnknownModel        a model name that is not there, or a folder that is not a model
├── MissingExtra        an optional package is needed; the message names the install command
├── InvalidImage        bytes that are not an image we can or will open
├── InvalidCaptions     a captions file that cannot be read as one
├── IndexProblem
│   ├── IndexMissing    no index at that path
│   ├── NotAnIndex      a folder that holds other things than an index
│   ├── WriteFailed     the disk is full or failed; the index is as it was before
│   ├── IndexEmpty      an index without images
│   ├── IndexBusy       another process is writing to it
│   ├── RootUnavailable a folder to index is not there, or suddenly empty
│   ├── SchemaTooNew    made by a newer capsearch
│   ├── SchemaTooOld    made by an older capsearch; the message names the command that rebuilds it
│   └── ModelMismatch   made with other models than the ones asked for
├── DataProblem         a data set that is not laid out as expected
│   └── MissingSplit    a source without the splits asked for
└── TrainingProblem     a training run that cannot start or go on

A message says what failed, what was expected and what to do next. Only `ui` exits.
"""

from __future__ import annotations


class CapsearchError(Exception):
    """Root of all errors a user can act on."""


class InvalidQuery(CapsearchError):
    """Nothing to search for, or a mode the query cannot have."""


class UnknownLanguage(CapsearchError):
    """A language no installed model reads."""


class UnknownModel(CapsearchError):
    """A model name that is not there, or a folder that is not a model."""


class MissingExtra(CapsearchError):
    """An optional package is needed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an extra: pip install 'capsearch[{extra}]'")


class InvalidImage(CapsearchError):
    """Bytes that are not an image we can or will open."""


class InvalidCaptions(CapsearchError):
    """A captions file that cannot be read as one."""


class IndexProblem(CapsearchError):
    """Something about the index on disk."""


class IndexMissing(IndexProblem):
    """No index at that path."""


class NotAnIndex(IndexProblem):
    """A folder that holds other things than an index: nothing in it is touched."""


class WriteFailed(IndexProblem):
    """The disk is full or failed: what was committed before stays, nothing else was saved."""


class IndexEmpty(IndexProblem):
    """An index without images."""


class IndexBusy(IndexProblem):
    """Another process is writing to the index."""


class RootUnavailable(IndexProblem):
    """A folder to index is not there, or suddenly empty: nothing was removed from the index."""


class SchemaTooNew(IndexProblem):
    """The index was made by a newer capsearch."""


class SchemaTooOld(IndexProblem):
    """The index was made by an older capsearch; the message names the command that rebuilds it."""


class ModelMismatch(IndexProblem):
    """The index was made with other models than the ones asked for."""


class DataProblem(CapsearchError):
    """A data set that is not laid out as expected."""


class MissingSplit(DataProblem):
    """A source without the splits asked for."""


class TrainingProblem(CapsearchError):
    """A training run that cannot start or go on."""
