"""Concepts: what images show, with names in English, Chinese and Japanese.

Several thousand concepts in tables beside this file, our own work: names and common synonyms,
broader concepts, WordNet 3.0 ids where they exist. They give labelled images captions, tags their
vocabulary, and tag filters their synonyms: `--tag animal` finds what is tagged 猫.

    concept = concepts.by_id("dolphin")
    concepts.named("イルカ")          # every concept with that name, in any language
    concepts.likeliest("kite")        # the one that an image usually shows
    concepts.narrower("animal")       # the ids of all animals, itself included
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from capsearch.encoders.languages import normalise, simplify
from capsearch.engine.records import LANGUAGES

_FOLDER = Path(__file__).parent
# Tables in the order in which images show their senses of a name: a kite is a toy, not the bird.
_SENSES = ("objects", "vehicles", "clothing", "food", "upper", "people", "animals")


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


def likeliest(name: str) -> Concept | None:
    """What a name means on an image, if it is a name: of its senses the most usual one."""
    return min(named(name), key=sense, default=None)


def broader(concept_id: str) -> frozenset[str]:
    """The ids of all concepts above, itself included."""
    return _reached(concept_id, lambda one: by_id(one).broader)


def narrower(concept_id: str) -> frozenset[str]:
    """The ids of all concepts below, itself included."""
    return _reached(concept_id, lambda one: _children().get(one, ()))


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
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for one in all_concepts().values():
        for names in one.names.values():
            for name in names:
                found[fold(name)][one.id] = None
    return {name: tuple(ids) for name, ids in found.items()}


def sense(concept: Concept) -> int:
    """How usual it is that images show this concept among those of one name, lowest first."""
    return _SENSES.index(concept.table) if concept.table in _SENSES else len(_SENSES)


def _read(path: Path) -> Iterator[Concept]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield Concept(
                id=row["id"],
                names={one: tuple(row[one].split("|")) for one in LANGUAGES},
                broader=tuple(filter(None, row["broader"].split("|"))),
                wordnet=row["wordnet"],
                table=path.stem,
            )
