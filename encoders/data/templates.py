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
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from capsearch.encoders.text.concepts import Concept, broader, by_id, fold, kind_of

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


# Measure words by the narrowest concept that has one, else by kind; none: not counted.
CHINESE: Mapping[str, str] = {
    "dog": "只条", "horse": "匹", "donkey": "头", "cow": "头", "pig": "头", "elephant": "头",
    "fish": "条", "snake": "条", "whale": "头", "boat": "艘条", "aircraft": "架", "train": "列",
    "tree": "棵", "flower": "朵", "footwear": "双", "headwear": "顶", "pants": "条",
    "skirt": "条", "dress": "条", "scarf": "条", "bridge": "座", "mountain": "座", "tower": "座",
    "building": "座栋", "shop": "家", "string-instrument": "把", "keyboard-instrument": "架",
    "wind-instrument": "支", "drum": "面", "furniture": "件", "chair": "把", "table": "张",
    "bed": "张", "book": "本", "knife": "把", "umbrella": "把", "egg-food": "个",
}  # fmt: skip
CHINESE_KINDS: Mapping[str, str] = {
    "animal": "只", "bird": "只", "plant": "株", "flower": "朵", "dish": "份盘", "drink": "杯瓶",
    "person": "个位名", "clothing": "件", "instrument": "件", "vehicle": "辆", "place": "个",
    "document": "张", "thing": "个", "food": "个",
}  # fmt: skip
JAPANESE: Mapping[str, str] = {
    "horse": "頭", "cow": "頭", "elephant": "頭", "whale": "頭", "giraffe": "頭", "bear": "頭",
    "lion": "頭", "tiger": "頭", "boat": "隻", "aircraft": "機", "tree": "本", "footwear": "足",
    "shop": "軒", "building": "軒", "string-instrument": "本", "wind-instrument": "本",
    "keyboard-instrument": "台", "appliance": "台", "machine": "台", "book": "冊",
    "bottle": "本", "t-shirt": "枚", "shirt": "枚",
}  # fmt: skip
JAPANESE_KINDS: Mapping[str, str] = {
    "animal": "匹", "bird": "羽", "plant": "株", "flower": "輪本", "dish": "皿", "drink": "杯",
    "person": "人", "clothing": "着枚", "instrument": "つ", "vehicle": "台", "place": "つ",
    "document": "枚", "thing": "つ", "food": "つ個",
}  # fmt: skip
_CHINESE_NUMBERS = ("一", "两", "三", "几")
_JAPANESE_NUMBERS = ("一", "二", "三")
_ENGLISH_NUMBERS = ("two", "three", "several", "many", "a group of")
_ENGLISH_KINDS = frozenset(
    ("animal", "bird", "plant", "flower", "person", "clothing", "instrument", "vehicle", "thing",
     "food", "document")
)  # fmt: skip
_IRREGULAR: Mapping[str, str] = {
    "man": "men", "woman": "women", "person": "people", "child": "children", "foot": "feet",
    "tooth": "teeth", "goose": "geese", "mouse": "mice", "ox": "oxen", "knife": "knives",
    "wife": "wives", "wolf": "wolves", "leaf": "leaves", "loaf": "loaves", "calf": "calves",
    "scarf": "scarves", "shelf": "shelves", "fish": "fish", "sheep": "sheep", "deer": "deer",
    "aircraft": "aircraft", "potato": "potatoes", "tomato": "tomatoes", "mango": "mangoes",
    "bus": "buses", "cactus": "cacti", "moose": "moose", "series": "series",
}  # fmt: skip
_PLURAL = re.compile(r"(?<![sui])s$")  # drums, pants; not glass, octopus, iris
_VOWEL = re.compile(r"(?!eu|one\b|uni|us|uk)[aeiou]|hour|heir|suv|mpv|x-", re.IGNORECASE)


def counted(concept: Concept, kind: str, name: str, language: str, rng: Random) -> str:
    """Several of a concept: "two dogs", 两只狗, 二匹の犬; empty for what is not counted."""
    if language == "en":
        return f"{rng.choice(_ENGLISH_NUMBERS)} {plural(name)}" if kind in _ENGLISH_KINDS else ""
    specific, general = (CHINESE, CHINESE_KINDS) if language == "zh" else (JAPANESE, JAPANESE_KINDS)
    measures = _of_narrowest(concept, specific) or general.get(kind, "")
    if not measures:
        return ""
    measure = rng.choice(measures)
    if language == "zh":
        return f"{rng.choice(_CHINESE_NUMBERS)}{measure}{name}"
    return f"{rng.choice(_JAPANESE_NUMBERS)}{measure}の{name}"


def plural(name: str) -> str:
    """The plural of an English name; one that is plural stays so."""
    head, _, last = name.rpartition(" ")
    return f"{head} {_plural_word(last)}" if head else _plural_word(last)


def with_article(name: str) -> str:
    """a dog, an apple; plural names have none (drums)."""
    if is_plural(name):
        return name
    return f"{'an' if _VOWEL.match(name) else 'a'} {name}"


def is_plural(name: str) -> bool:
    """Whether an English name is plural by its form: drums, French fries."""
    return bool(_PLURAL.search(name)) and name.lower().rpartition(" ")[2] not in _IRREGULAR


def _plural_word(word: str) -> str:
    if word.lower() in _IRREGULAR:
        return _IRREGULAR[word.lower()]
    if is_plural(word):
        return word
    if re.search(r"(s|x|z|ch|sh)$", word):
        return f"{word}es"
    return re.sub(r"(?<=[^aeiou])y$", "ie", word) + "s"


def _of_narrowest(concept: Concept, table: Mapping[str, str]) -> str:
    above = broader(concept.id)
    found = [one for one in table if one in above]
    # The narrowest has the others above it.
    return table[max(found, key=lambda one: len(broader(one)))] if found else ""
