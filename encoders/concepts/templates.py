"""Captions for photographs that have labels and no captions: the names of concepts in sentences.

    rng = random.Random(7)
    captions(by_id("violin"), "ja", rng, 3)    # バイオリン, ヴァイオリンの写真, ...
    photo_captions([by_id("dog"), by_id("sketch")], "en", rng, 2)    # a sketch of a dog, dog

The commonest name is used most, then its synonyms, then broader concepts. What is said of it
depends on its kind: one is inside a place, animals are counted, dishes are on plates.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from capsearch.encoders.concepts import Concept, by_id, fold
from capsearch.encoders.concepts.counting import counted, with_article
from capsearch.encoders.concepts.kinds import kind_of
from capsearch.encoders.concepts.phrases import OF_KIND, PHOTO, REQUESTS, STYLED

SYNONYM_SHARE = 0.35  # of captions that use another name than the commonest
BROADER_SHARE = 0.08  # of captions that name a broader concept
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


def captions(
    concept: Concept,
    language: str,
    rng: Random,
    count: int,
    without: Collection[str] = frozenset(),
) -> tuple[str, ...]:
    """So many captions that name a concept; fewer if all its names are in `without` (folded).

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
) -> tuple[str, ...]:
    """So many captions of a photograph of several concepts, the first named most.

    Of a concept and a way of depicting (sketch), half the captions name both.
    """
    things = [one for one in shown if one.id not in STYLED]
    styles = [one for one in shown if one.id in STYLED]
    if not things:
        things, styles = styles, []
    found: list[str] = []
    for _ in range(count if things else 0):
        thing = things[0] if rng.random() < 0.7 else rng.choice(things)
        if styles and rng.random() < 0.5:
            name = _name(thing, language, rng, without)
            phrases = STYLED[rng.choice(styles).id][language]
            found += [_fill(rng.choice(phrases), name, kind_of(thing))] if name else []
        else:
            found += captions(thing, language, rng, 1, without)
    return tuple(found)


def _caption(concept: Concept, language: str, rng: Random, without: Collection[str]) -> str:
    form = rng.choices(tuple(FORMS), tuple(FORMS.values()))[0]
    name = _name(concept, language, rng, without)
    kind = kind_of(concept)
    if not name or form == "name" or (kind in UNDEPICTED and form != "kind"):
        return name
    if form == "counted":
        return counted(concept, kind, name, language, rng) or name
    phrases = {"photo": PHOTO, "request": REQUESTS, "kind": OF_KIND[kind]}[form]
    return _fill(rng.choice(phrases[language]), name, kind)


def _name(concept: Concept, language: str, rng: Random, without: Collection[str]) -> str:
    """One of its names, or of a broader concept's; empty if none may be used."""
    above = [one for one in concept.broader if one not in UNNAMED]
    if above and rng.random() < BROADER_SHARE:
        concept = by_id(rng.choice(above))
    synonym = rng.random() < SYNONYM_SHARE
    names = [one for one in concept.names[language] if fold(one) not in without]
    if not names:
        return ""
    return rng.choice(names[1:]) if synonym and names[1:] else names[0]


def _fill(phrase: str, name: str, kind: str) -> str:
    return phrase.format(name, a=name if kind in WITHOUT_ARTICLE else with_article(name))
