"""Labels of published labelled sets as concepts, and which of them are held out of training.

`labels.tsv` beside this file, our own work, gives each label of a labelled set the concepts that
its photographs show: ("instruments30", "saxaphone") -> ("saxophone",).

Two things are held out, the same on every machine because hashes decide:

- concepts: some are never trained on, neither their photographs nor captions with their names.
  `split_of` says which: "val" chooses models, "test" is the figure to report;
- photographs of the other concepts: `split_of_photo`.

A model for use, whose recipe has been measured with concepts held out, may be trained on all of
them: `train --all-concepts` holds out photographs alone.

`never_held_out.txt` lists the labelled concepts that are always trained on: those that the training
captions of COCO and Flickr8k name more than 20 times, those with a narrower labelled concept (the
photographs of sparrows are birds), and those that qualify another one (sketch, convertible).
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from capsearch.encoders.text import concepts
from capsearch.engine.records import LANGUAGES

_FOLDER = Path(__file__).parent
# Shares of [0, 1), cumulative: test first, then val; the rest is trained on.
CONCEPT_SHARES: Mapping[str, float] = {"test": 0.16, "val": 0.24}
PHOTO_SHARES: Mapping[str, float] = {"test": 0.15, "val": 0.25}


def concepts_of(labelled_set: str, label: str) -> tuple[str, ...]:
    """The ids of the concepts that photographs with a label show; () for a label without meaning.

    A label of a set that is not in the table can be the id of a concept, or a name that exactly
    one concept has.
    """
    table = _labels()
    if labelled_set in table:
        return table[labelled_set].get(label, ())
    if label in concepts.all_concepts():
        return (label,)
    named = concepts.named(label)
    return (named[0].id,) if len(named) == 1 else ()


@cache
def labelled_concepts() -> frozenset[str]:
    """The ids of all concepts that a label of the table stands for."""
    labels = (label for of_set in _labels().values() for label in of_set.values())
    return frozenset(concept for label in labels for concept in label)


@cache
def split_of(concept_id: str) -> str:
    """train, val or test: the concepts of val and test are never trained on.

    A kind of a concept that is held out is held out with it. KeyError for an unknown concept.
    """
    return _strictest(map(_own_split, concepts.broader(concept_id)))


def split_of_photo(photo_id: str, concept_ids: Iterable[str]) -> str:
    """The split of a photograph: that of a concept held out, else by the hash of its id."""
    held_out = _strictest(map(split_of, concept_ids))
    return _share(f"photo {photo_id}", PHOTO_SHARES) if held_out == "train" else held_out


@cache
def held_out() -> frozenset[str]:
    """The ids of all concepts held out."""
    return frozenset(concept for concept in concepts.all_concepts() if split_of(concept) != "train")


def folded_names(ids: Iterable[str]) -> frozenset[str]:
    """The names, folded, of concepts: no caption to train on may use one of a concept held out.

    A concept that is trained on may share a name with one that is held out; `concepts.fold`
    gives the form to look up.
    """
    return frozenset(
        concepts.fold(name)
        for concept in ids
        for language in LANGUAGES
        for name in concepts.by_id(concept).names[language]
    )


def _own_split(concept_id: str) -> str:
    if concept_id not in labelled_concepts() or concept_id in _never_held_out():
        return "train"
    return _share(f"concept {concept_id}", CONCEPT_SHARES)


def _strictest(splits: Iterable[str]) -> str:
    given = set(splits)
    return next((split for split in ("test", "val") if split in given), "train")


def _share(key: str, shares: Mapping[str, float]) -> str:
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    at = int.from_bytes(digest[:8], "big") / 2**64
    return next((split for split, end in shares.items() if at < end), "train")


@cache
def _labels() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    labels: dict[str, dict[str, tuple[str, ...]]] = {}
    with (_FOLDER / "labels.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            ids = tuple(filter(None, row["concepts"].split("|")))
            labels.setdefault(row["set"], {})[row["label"]] = ids
    return labels


@cache
def _never_held_out() -> frozenset[str]:
    return frozenset((_FOLDER / "never_held_out.txt").read_text("utf-8").split())
