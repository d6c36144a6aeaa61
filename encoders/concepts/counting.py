"""Numbers and names: English articles and plurals, Chinese measure words, Japanese counters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

from capsearch.encoders.concepts import Concept, broader

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
