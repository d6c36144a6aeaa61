"""Concepts: what images show, with names in English, Chinese and Japanese.

Several thousand concepts in tables beside this file, our own work: names and common synonyms,
broader concepts, WordNet 3.0 ids where they exist. They give labelled images captions, tags their
vocabulary, and tag filters their synonyms: `--tag animal` finds what is tagged 猫.

    concept = concepts.by_id("dolphin")
    concepts.named("イルカ")          # every concept with that name, in any language
    concepts.likeliest("kite")        # the one that a label most likely means
    concepts.narrower("animal")       # the ids of all animals, itself included
    concepts.under("动物")            # the same by any name

What sentences name is found by `concepts.mentions`.

The kind of a concept: what can be said of it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path

from capsearch.encoders.text.languages import normalise, simplify
from capsearch.engine.records import LANGUAGES

_FOLDER = Path(__file__).parent
# The tables in which labels of images most likely stand, likeliest first: a kite is not the bird.
_SENSES = ("upper", "objects", "vehicles", "clothing", "food", "people", "animals")


@dataclass(frozen=True, slots=True)
class Concept:
    """Something an image can show; the first name of a language is the commonest."""

    id: str
    names: Mapping[str, tuple[str, ...]]  # by language
    broader: tuple[str, ...]  # ids, directly above
    wordnet: str  # "" where it has none
    table: str  # the file it stands in: "animals", "dishes", ...

    def name(self, language: str) -> str:
        """The commonest name in a language."""
        return self.names[language][0]


@cache
def all_concepts() -> Mapping[str, Concept]:
    """Every concept by id, in the order of the tables."""
    return {one.id: one for path in sorted(_FOLDER.glob("*.tsv")) for one in _read(path)}


@cache
def version() -> str:
    """Changes when the tables do."""
    total = hashlib.blake2b(digest_size=6)
    for path in sorted(_FOLDER.glob("*.tsv")):
        total.update(path.read_bytes())
    return total.hexdigest()


def by_id(concept_id: str) -> Concept:
    """The concept with an id; KeyError for one that does not exist."""
    return all_concepts()[concept_id]


def named(name: str) -> tuple[Concept, ...]:
    """The concepts with a name in any language, whatever its case and script variant."""
    return tuple(by_id(one) for one in _ids_by_name().get(fold(name), ()))


@lru_cache(maxsize=65_536)
def fold(name: str) -> str:
    """A name as it is compared: normalised, Simplified, lower case."""
    return simplify(normalise(name)).lower()


def folded(names: Iterable[str]) -> list[str]:
    """Names of the table, folded; as one text, since converting each would take a while."""
    return simplify("\n".join(names)).lower().split("\n")


def likeliest(name: str, language: str | None = None) -> Concept | None:
    """The concept that a label most likely means; None for a label that names none.

    In a `language`, names of that language count: 货车 is a truck, and 貨車 a freight car.
    """
    known = [one for one in named(name) if language is None or _has_name(one, name, language)]
    return min(known, key=lambda one: sense(one, name, language), default=None)


def _has_name(concept: Concept, name: str, language: str) -> bool:
    return fold(name) in map(fold, concept.names[language])


def label_of(concept_id: str, label: str, language: str) -> str:
    """The name of a tag in a language: of its concept, or its label if it has none."""
    if not concept_id:
        return label
    known = all_concepts().get(concept_id)  # another version of the table may have written it
    return known.name(language) if known else label


def under(name: str) -> frozenset[str]:
    """The ids of all concepts with a name in any language, and of all below them."""
    return frozenset(chain.from_iterable(narrower(one.id) for one in named(name)))


def sense(concept: Concept, name: str, language: str | None = None) -> tuple[int, bool]:
    """How usual it is that a name means this concept among those that have it, lowest first.

    What images usually show; of these, what it is the commonest name of, in its language.
    """
    languages = (language,) if language else LANGUAGES
    commonest = any(fold(concept.name(one)) == fold(name) for one in languages)
    place = _SENSES.index(concept.table) if concept.table in _SENSES else len(_SENSES)
    return place, not commonest


@cache
def broader(concept_id: str) -> frozenset[str]:
    """The ids of all concepts above, itself included."""
    return _reached(concept_id, lambda one: by_id(one).broader)


@cache
def narrower(concept_id: str) -> frozenset[str]:
    """The ids of all concepts below, itself included."""
    return _reached(concept_id, lambda one: _children().get(one, ()))


def broadest(ids: frozenset[str]) -> list[str]:
    """Those of some concepts that none of the others is broader than."""
    known = all_concepts()
    return sorted(one for one in ids if one not in known or not (ids & broader(one)) - {one})


def _reached(start: str, neighbours: Callable[[str], Iterable[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting.extend(neighbours(one))
    return frozenset(found)


@cache
def _children() -> Mapping[str, tuple[str, ...]]:
    below: dict[str, list[str]] = defaultdict(list)
    for one in all_concepts().values():
        for above in one.broader:
            below[above].append(one.id)
    return {above: tuple(ids) for above, ids in below.items()}


@cache
def _ids_by_name() -> Mapping[str, tuple[str, ...]]:
    names = [
        (name, one.id)
        for one in all_concepts().values()
        for language in LANGUAGES
        for name in one.names[language]
    ]
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for name, (_, concept_id) in zip(folded(name for name, _ in names), names, strict=True):
        found[name][concept_id] = None
    return {name: tuple(ids) for name, ids in found.items()}


def _read(path: Path) -> Iterator[Concept]:
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    columns = head.split("\t")
    for line in lines:
        row = dict(zip(columns, line.split("\t"), strict=True))
        yield Concept(
            id=row["id"],
            names={one: tuple(row[one].split("|")) for one in LANGUAGES},
            broader=tuple(filter(None, row["broader"].split("|"))),
            wordnet=row["wordnet"],
            table=path.stem,
        )


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
    """What kind of thing it is: there are phrases for each (encoders.data.templates)."""
    if concept.table in _BY_TABLE:
        return _BY_TABLE[concept.table]
    above = broader(concept.id)
    return next((kind for one, kind in _BY_BROADER.items() if one in above), "thing")
