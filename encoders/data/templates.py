"""Captions for photographs that have labels and no captions: the names of concepts in sentences.

    rng = random.Random(7)
    captions(by_id("violin"), "ja", rng, 3)    # バイオリン, ヴァイオリンの写真, ...
    photo_captions([by_id("dog"), by_id("sketch")], "en", rng, 2)    # a sketch of a dog, an animal

The commonest name is used most, then its synonyms. What is said of it depends on its kind: one is
inside a place, animals are counted, dishes are on plates. A photograph is now and then captioned
with a broader concept of what it shows.

The phrases are in `phrases.tsv`, in sets: `photo` of anything that images show, `request` as people
ask for images, `kind KIND` what is said of the things of a kind, `style ID` of a way of depicting.
"{}" is the name, "{a}" the name with its English article.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from capsearch.encoders.text.concepts import Concept, by_id, fold, kind_of
from capsearch.encoders.text.concepts.mentions import counted, with_article

Phrases = Mapping[str, tuple[str, ...]]  # by language


@cache
def phrase_sets() -> Mapping[str, Phrases]:
    """All sets of phrases by name."""
    tables: dict[str, dict[str, tuple[str, ...]]] = {}
    with (Path(__file__).parent / "phrases.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            table = tables.setdefault(row["set"], {})
            table[row["language"]] = (*table.get(row["language"], ()), row["phrase"])
    return tables


def phrases(name: str) -> Phrases:
    """A set of phrases by language: "photo", "request", "kind animal", "style painting", ..."""
    return phrase_sets()[name]


def is_style(concept_id: str) -> bool:
    """Whether a concept is a way of depicting, which says how another one is shown."""
    return concept_id == "photo" or f"style {concept_id}" in phrase_sets()


SYNONYM_SHARE = 0.35  # of captions that use another name than the commonest
BROADER_SHARE = 0.08  # of captions of a photograph that name a broader concept
# Shares of the forms of a caption, which add up to 1.
FORMS = {"name": 0.30, "photo": 0.22, "counted": 0.13, "kind": 0.25, "request": 0.10}

# Kinds of which there is an amount, or one only: their English names have no article.
WITHOUT_ARTICLE = frozenset(("dish", "food", "drink", "style", "landmark"))
# Kinds that are not things one has photographs of.
UNDEPICTED = frozenset(("action", "attribute"))
# Broader concepts that nobody would name for what is shown.
UNNAMED = frozenset(
    ("structure", "household-item", "place", "attribute", "action", "material", "shape", "color",
     "natural-object", "event", "symbol", "photo-style", "art-style", "body-part", "landmark",
     "indoor-scene", "outdoor-scene", "document")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NameCaption:
    """A caption, and the id of the concept that it names."""

    text: str
    concept: str


def captions(
    concept: Concept,
    language: str,
    rng: Random,
    count: int,
    without: Collection[str] = frozenset(),
) -> tuple[str, ...]:
    """So many captions that name a concept; none if all its names are in `without` (folded).

    Equal states of `rng` give equal captions.
    """
    drawn = (_caption(concept, language, rng, without) for _ in range(count))
    return tuple(caption for caption in drawn if caption)


def photo_captions(
    shown: Sequence[Concept],
    language: str,
    rng: Random,
    count: int,
    without: Collection[str] = frozenset(),
) -> tuple[NameCaption, ...]:
    """So many captions of a photograph of several concepts, the first named most.

    Of a concept and a way of depicting (sketch), half the captions name both. Fewer captions if
    names are in `without` (folded).
    """
    styles = [concept for concept in shown if is_style(concept.id)]
    things = [concept for concept in shown if not is_style(concept.id)]
    if not things:
        things, styles = styles, []
    written: list[NameCaption] = []
    for _ in range(count if things else 0):
        thing = _broadened(things[0] if rng.random() < 0.7 else rng.choice(things), rng)
        text = _caption(thing, language, rng, without)
        if styles and rng.random() < 0.5:
            name = _name(thing, language, rng, without)
            style = rng.choice(styles).id
            set_of_style = phrases(style if style == "photo" else f"style {style}")
            text = _fill(rng.choice(set_of_style[language]), name, kind_of(thing)) if name else ""
        if text:
            written.append(NameCaption(text, thing.id))
    return tuple(written)


def _broadened(concept: Concept, rng: Random) -> Concept:
    above = [broader for broader in concept.broader if broader not in UNNAMED]
    return by_id(rng.choice(above)) if above and rng.random() < BROADER_SHARE else concept


def _caption(concept: Concept, language: str, rng: Random, without: Collection[str]) -> str:
    form = rng.choices(tuple(FORMS), tuple(FORMS.values()))[0]
    name = _name(concept, language, rng, without)
    kind = kind_of(concept)
    if not name or form == "name" or (kind in UNDEPICTED and form != "kind"):
        return name
    if form == "counted":
        return counted(concept, kind, name, language, rng) or name
    chosen = phrases(f"kind {kind}" if form == "kind" else form)
    return _fill(rng.choice(chosen[language]), name, kind)


def _name(concept: Concept, language: str, rng: Random, without: Collection[str]) -> str:
    """One of its names; empty if none may be used."""
    synonym = rng.random() < SYNONYM_SHARE
    names = [name for name in concept.names[language] if fold(name) not in without]
    if not names:
        return ""
    return rng.choice(names[1:]) if synonym and names[1:] else names[0]


def _fill(phrase: str, name: str, kind: str) -> str:
    return phrase.format(name, a=name if kind in WITHOUT_ARTICLE else with_article(name))
