"""Captions for photographs that have labels and no captions: the names of concepts in sentences.

    rng = random.Random(7)
    captions(by_id("violin"), "ja", rng, 3)    # バイオリン, ヴァイオリンの写真, ...
    photo_captions([by_id("dog"), by_id("sketch")], "en", rng, 2)    # a sketch of a dog, an animal

The commonest name is used most, then its synonyms. What is said of it depends on its kind: one is
inside a place, animals are counted, dishes are on plates. A photograph is now and then captioned
with a broader concept of what it shows.

The phrases that captions of concepts are made of, by language.

"{}" is the name, "{a}" the name with its English article.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from capsearch.encoders.text.concepts import Concept, by_id, fold, kind_of
from capsearch.encoders.text.concepts.mentions import counted, with_article

# Of anything that images show.
PHOTO: Mapping[str, tuple[str, ...]] = {
    "en": (
        "a photo of {a}",
        "a picture of {a}",
        "an image of {a}",
        "a close-up of {a}",
        "a photograph showing {a}",
        "a cropped photo of {a}",
        "this is {a}",
        "there is {a} in the picture",
    ),
    "zh": (
        "{}的照片",
        "一张{}的照片",
        "{}的图片",
        "{}的特写",
        "照片里有{}",
        "这是{}",
        "图中是{}",
        "{}的近景",
    ),
    "ja": (
        "{}の写真",
        "{}の画像",
        "{}のアップ",
        "{}が写っている",
        "これは{}です",
        "{}が写った写真",
        "{}を撮った写真",
        "{}の近景",
    ),
}
# As people ask for images.
REQUESTS: Mapping[str, tuple[str, ...]] = {
    "en": (
        "where is the {}?",
        "show me pictures of {a}",
        "find photos of {a}",
        "photos with {a}",
        "is there {a}?",
        "{} pictures",
    ),
    "zh": (
        "有{}的照片",
        "给我看{}的照片",
        "{}在哪里？",
        "找{}的图片",
        "哪张照片里有{}",
        "有没有{}",
    ),
    "ja": (
        "{}の写真を見せて",
        "{}はどこ？",
        "{}の写真を探して",
        "{}がある写真",
        "{}はありますか",
        "{}の画像が見たい",
    ),
}
# What is said of the things of a kind, by language.
OF_KIND: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "animal": {
        "en": ("{a} in the wild", "{a} looking at the camera", "an animal: {a}", "a wild {}"),
        "zh": ("野外的{}", "{}在看镜头", "一种动物，{}", "可爱的{}"),
        "ja": ("野生の{}", "{}がこちらを見ている", "{}という動物", "かわいい{}"),
    },
    "bird": {
        "en": ("{a} on a branch", "{a} perched on a tree", "a bird, {a}", "{a} in flight"),
        "zh": ("树枝上的{}", "{}停在树上", "一种鸟，{}", "飞翔的{}"),
        "ja": ("枝にとまる{}", "木にとまっている{}", "{}という鳥", "飛んでいる{}"),
    },
    "plant": {
        "en": ("{a} growing outdoors", "{a} in a garden", "a plant: {a}", "a field of {}"),
        "zh": ("花园里的{}", "户外生长的{}", "一种植物，{}", "一片{}"),
        "ja": ("庭の{}", "屋外に生えている{}", "{}という植物", "一面の{}"),
    },
    "flower": {
        "en": ("{a} in bloom", "{a} in a garden", "a flower, {a}", "blooming {}"),
        "zh": ("盛开的{}", "花园里的{}", "一种花，{}", "{}开花了"),
        "ja": ("咲いている{}", "庭に咲く{}", "{}という花", "満開の{}"),
    },
    "dish": {
        "en": ("a plate of {}", "a bowl of {}", "{} on a plate", "delicious {}", "a dish of {}"),
        "zh": ("一盘{}", "一碗{}", "盘子里的{}", "好吃的{}", "一道{}"),
        "ja": ("皿に盛られた{}", "美味しそうな{}", "{}の料理", "お皿の上の{}", "一皿の{}"),
    },
    "food": {
        "en": ("fresh {}", "some {} on a table", "{} for sale", "a pile of {}", "food: {}"),
        "zh": ("新鲜的{}", "桌上的{}", "商店里的{}", "一些{}", "一堆{}"),
        "ja": ("新鮮な{}", "テーブルの上の{}", "店に並ぶ{}", "たくさんの{}", "食べ物、{}"),
    },
    "drink": {
        "en": ("a glass of {}", "a bottle of {}", "a cup of {}", "a package of {}"),
        "zh": ("一杯{}", "一瓶{}", "一盒{}", "喝{}"),
        "ja": ("一杯の{}", "ボトルに入った{}", "コップの{}", "{}のパック"),
    },
    "person": {
        "en": ("a portrait of {a}", "{a} standing", "{a} at work"),
        "zh": ("{}的肖像", "站着的{}", "一位{}"),
        "ja": ("{}の肖像", "立っている{}", "{}の姿"),
    },
    "clothing": {
        "en": (
            "someone wearing {a}",
            "{a} on a hanger",
            "{a} laid out on the floor",
            "clothes: {}",
        ),
        "zh": ("穿戴着{}", "挂着的{}", "平铺在地上的{}", "一件衣服，{}"),
        "ja": ("{}を身につけた人", "掛けてある{}", "床に広げた{}", "服、{}"),
    },
    "instrument": {
        "en": ("someone playing the {}", "{a} on a white background", "a musician with {a}"),
        "zh": ("演奏{}", "白色背景上的{}", "拿着{}的音乐家", "弹奏{}的人"),
        "ja": ("{}を演奏する人", "白い背景の{}", "{}という楽器", "{}の演奏"),
    },
    "vehicle": {
        "en": ("{a} outdoors", "{a} parked outside", "the side of {a}", "a new {}"),
        "zh": ("户外的{}", "停着的{}", "{}的侧面", "崭新的{}"),
        "ja": ("外にある{}", "停まっている{}", "{}の側面", "新しい{}"),
    },
    "place": {
        "en": (
            "in {a}",
            "inside {a}",
            "a view of {a}",
            "people in {a}",
            "at the {}",
            "an empty {}",
        ),
        "zh": ("在{}里", "{}内部", "{}的风景", "{}里的人们", "在{}", "空荡荡的{}"),
        "ja": ("{}の中", "{}の風景", "{}にいる人々", "{}で", "誰もいない{}", "{}の様子"),
    },
    "landmark": {
        "en": ("a view of {}", "tourists at {}", "{} at night", "a trip to {}"),
        "zh": ("{}的风景", "{}的游客", "夜晚的{}", "{}旅游"),
        "ja": ("{}の風景", "{}の観光客", "夜の{}", "{}への旅行"),
    },
    "style": {
        "en": ("a painting in the style of {}", "{} art", "a work of {}", "{} painting"),
        "zh": ("{}风格的画", "{}艺术", "{}作品", "{}绘画"),
        "ja": ("{}風の絵", "{}の作品", "{}の絵画", "{}の美術"),
    },
    "document": {
        "en": ("a scan of {a}", "{a} with text", "{a} on paper"),
        "zh": ("扫描的{}", "写着字的{}", "一张{}"),
        "ja": ("スキャンした{}", "文字が書かれた{}", "一枚の{}"),
    },
    "event": {
        "en": ("people at {a}", "celebrating {}", "a scene of {a}"),
        "zh": ("{}的场面", "参加{}的人们", "庆祝{}"),
        "ja": ("{}の様子", "{}に集まる人々", "{}の場面"),
    },
    "action": {
        "en": ("a person {}", "people {}", "someone is {}"),
        "zh": ("一个人在{}", "人们在{}", "{}的人"),
        "ja": ("{}人", "{}人々", "{}様子"),
    },
    "attribute": {
        "en": ("something {}", "{} things"),
        "zh": ("{}的东西", "{}的"),
        "ja": ("{}もの", "{}な感じ"),
    },
    "thing": {
        "en": ("{a} on a table", "{a} in use", "{a} on a white background", "the {}"),
        "zh": ("桌上的{}", "使用中的{}", "白色背景上的{}", "这个{}"),
        "ja": ("テーブルの上の{}", "使われている{}", "白い背景の{}", "その{}"),
    },
}
# A way of depicting: a concept of its own, which says how another one is shown.
STYLED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "painting": {
        "en": ("a painting of {a}", "an oil painting of {a}", "{a}, painted"),
        "zh": ("{}的画", "一幅{}的油画", "画中的{}"),
        "ja": ("{}の絵", "{}の油絵", "絵に描かれた{}"),
    },
    "cartoon": {
        "en": ("a cartoon of {a}", "a cartoon {}", "a drawing of {a}"),
        "zh": ("{}的卡通画", "卡通{}", "{}漫画"),
        "ja": ("{}のイラスト", "漫画の{}", "アニメ風の{}"),
    },
    "sketch": {
        "en": ("a sketch of {a}", "a pencil drawing of {a}", "{a} drawn in lines"),
        "zh": ("{}的素描", "{}的线稿", "手绘的{}"),
        "ja": ("{}のスケッチ", "{}の線画", "手描きの{}"),
    },
    "photo": PHOTO,
}

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
    things = [one for one in shown if one.id not in STYLED]
    styles = [one for one in shown if one.id in STYLED]
    if not things:
        things, styles = styles, []
    found: list[NameCaption] = []
    for _ in range(count if things else 0):
        thing = _broadened(things[0] if rng.random() < 0.7 else rng.choice(things), rng)
        text = _caption(thing, language, rng, without)
        if styles and rng.random() < 0.5:
            name = _name(thing, language, rng, without)
            phrases = STYLED[rng.choice(styles).id][language]
            text = _fill(rng.choice(phrases), name, kind_of(thing)) if name else ""
        if text:
            found.append(NameCaption(text, thing.id))
    return tuple(found)


def _broadened(concept: Concept, rng: Random) -> Concept:
    above = [one for one in concept.broader if one not in UNNAMED]
    return by_id(rng.choice(above)) if above and rng.random() < BROADER_SHARE else concept


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
    """One of its names; empty if none may be used."""
    synonym = rng.random() < SYNONYM_SHARE
    names = [one for one in concept.names[language] if fold(one) not in without]
    if not names:
        return ""
    return rng.choice(names[1:]) if synonym and names[1:] else names[0]


def _fill(phrase: str, name: str, kind: str) -> str:
    return phrase.format(name, a=name if kind in WITHOUT_ARTICLE else with_article(name))
