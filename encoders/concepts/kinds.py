"""The kind of a concept: what can be said of it."""

from __future__ import annotations

from collections.abc import Mapping

from capsearch.encoders.concepts import Concept, broader

# By the first of these that is among its broader concepts. An order: birds are animals.
_BY_BROADER: Mapping[str, str] = {
    "art-style": "style",
    "drink": "drink",
    "dish": "dish",
    "food": "food",
    "bird": "bird",
    "animal": "animal",
    "flower": "flower",
    "plant": "plant",
    "person": "person",
    "clothing": "clothing",
    "musical-instrument": "instrument",
    "vehicle": "vehicle",
    "place": "place",
    "building": "place",
    "structure": "place",
    "document": "document",
    "event": "event",
    "action": "action",
}
_BY_TABLE: Mapping[str, str] = {
    "actions": "action",
    "attributes": "attribute",
    "dishes": "dish",
    "events": "event",
    "landmarks": "landmark",
}


def kind_of(concept: Concept) -> str:
    """What kind of thing it is: a key of `phrases.OF_KIND`."""
    if concept.table in _BY_TABLE:
        return _BY_TABLE[concept.table]
    above = broader(concept.id)
    return next((kind for one, kind in _BY_BROADER.items() if one in above), "thing")
