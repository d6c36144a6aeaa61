"""The next version of a collection, beside the one that searches see.

Everything that is known of the images goes over first, with the vectors that need no image: those
projected from stored features where the backbone is the same, and those of captions. The pipeline
does the rest. Stopped or killed, it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from capsearch.encoders.models import Model
from capsearch.indexer.elastic.documents import whole
from capsearch.indexer.elastic.editing import Change, Editor
from capsearch.indexer.elastic.entry import Entry
from capsearch.indexer.elastic.mapping import WHOLE
from capsearch.indexer.embedded.manifest import Identity

_ALL: Mapping[str, Any] = {"match_all": {}}
_WITHOUT_VECTOR: Mapping[str, Any] = {"term": {"encoded": False}}


def carry_over(old: Editor, made: Identity, new: Editor, model: Model) -> None:
    """Copies the documents that the next version lacks; images without a vector are encoded later.

    With another model of the same backbone, no image has to be opened. With the same model
    every image is.
    """
    wanted = Identity.of(model)
    project = made.same_backbone(wanted) and not made.same_vectors(wanted)
    for hits in old.backend.scan(dict(_ALL), WHOLE):
        there = new.existing([hit["_id"] for hit in hits])
        entries = {hit["_id"]: Entry.of(whole(hit)) for hit in hits if hit["_id"] not in there}
        for entry in entries.values():
            _forget_vectors(entry, model if project else None)
        new.edit({one: _unless_there(entry) for one, entry in entries.items()}, new=entries)


def keep_unreachable(old: Editor, new: Editor) -> None:
    """Images whose files are out of reach keep the vectors they have; the model is the same."""
    for hits in new.backend.scan(dict(_WITHOUT_VECTOR), {"source": False}):
        before = old.read([hit["_id"] for hit in hits])
        new.edit({image_id: _with_vectors_of(one) for image_id, one in before.items()})


def _forget_vectors(entry: Entry, model: Model | None) -> None:
    for one in entry.captions:
        one.encoded, one.vector = False, None
    entry.vector = None
    if model is None or entry.feature is None:
        entry.feature = None
    else:
        entry.vector = model.image.project(entry.feature[np.newaxis])[0]


def _unless_there(entry: Entry) -> Change:
    return lambda there: there or entry


def _with_vectors_of(before: Entry) -> Change:
    def change(entry: Entry | None) -> Entry | None:
        if entry is not None and entry.vector is None:
            entry.feature, entry.vector = before.feature, before.vector
        return entry

    return change
