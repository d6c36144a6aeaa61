"""Toy encoders for tests: no weights, no disk, yet real searches (with engine.fakes).

An image is the share of its pixels nearest to each of eight colours; a sentence is the
colours and things it names in English, Chinese or Japanese. So "a red car" finds the red
image, "红色的车" and "赤い車" find it too, and a test can do the arithmetic by hand.

A backend for tests: documents and vectors in memory, every document scored for every query.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import PurePath
from typing import Any

import numpy as np

from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.evidence import (
    ConvexCombination,
    Evidence,
    EvidenceModel,
    contributions,
    is_rare,
    tag_score,
    word_weight,
)
from capsearch.engine.protocols import Found, Stats
from capsearch.engine.query import ConceptTable, EncodedQuery, Understood, phrases, tag_facets
from capsearch.engine.records import (
    GENERATED,
    LANGUAGES,
    Caption,
    Document,
    EncodedText,
    Facet,
    Facets,
    Filters,
    ImageFeatures,
    Pixels,
    Tag,
    Vectors,
)
from capsearch.engine.vectors import as_document, as_query, strip_bias, unit


@dataclass(frozen=True, slots=True)
class FakeBackend:
    """The contract of a backend in its plainest form.

    `vectors` holds image vectors by id, `captions` one (image id, caption, vector) each. Tags are
    linked by `concepts` if it is given.
    """

    documents: Mapping[str, Document] = field(default_factory=dict)
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    captions: Sequence[tuple[str, Caption, Vectors]] = ()
    concepts: ConceptTable | None = None

    def __len__(self) -> int:
        return len(self._searchable())

    def stats(self) -> Stats:
        """Documents that can be found, and whether any caption has a vector."""
        return Stats(len(self), bool(self.captions))

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """Scores all documents that pass, sorts them, and takes the page."""
        if query.empty:
            return ()
        ids = [
            one
            for one in self._searchable()
            if self._passes(self.documents[one], filters) and self._has_phrases(one, query.phrases)
        ]
        matched = [self._matched(one, query) for one in ids]
        evidence = self._evidence(ids, query, matched)
        scores = query.fusion.scores(evidence)
        parts = query.fusion.log_odds(evidence)
        found = [
            Found(
                self.documents[one],
                float(scores[row]),
                contributions(evidence, parts, row, query.fusion.sources, matched[row][0]),
            )
            for row, one in enumerate(ids)
            if scores[row] > -np.inf and scores[row] >= query.min_score
        ]
        found.sort(key=lambda one: (-one.score, one.document.record.id))
        return tuple(found[offset : offset + limit])

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; those that are unknown or have no file are left out."""
        known = {one: self.documents[one] for one in ids if one in self.documents}
        return {one: document for one, document in known.items() if document.record.paths}

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector, or None."""
        return self.vectors.get(image_id) if self.lookup([image_id]) else None

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """Latest first, undated last; ties by id."""
        present = self.lookup(sorted(self.documents)).values()
        passing = [document for document in present if self._passes(document, filters)]
        dated = sorted(
            (document for document in passing if document.record.taken_at is not None),
            key=lambda document: document.record.taken_at or datetime.min,
            reverse=True,
        )
        undated = [document for document in passing if document.record.taken_at is None]
        return tuple([*dated, *undated][offset : offset + limit])

    def facets(self) -> Facets:
        """What the documents can be filtered by, with counts."""
        present = self.lookup(list(self.documents)).values()
        moments = [one.record.taken_at for one in present if one.record.taken_at is not None]
        return Facets(
            tags=self._tag_facets(present),
            folders=_counted(
                {str(folder) for path in one.record.paths for folder in PurePath(path).parents}
                for one in present
            ),
            caption_languages=_counted({text.language for text in one.captions} for one in present),
            written_by=_counted({_author(text) for text in one.captions} for one in present),
            earliest=min(moments).date() if moments else None,
            latest=max(moments).date() if moments else None,
        )

    def _passes(self, document: Document, filters: Filters) -> bool:
        return (
            _lies_under(document.record.paths, filters.folders)
            and all(self._tagged(document.tags, label) for label in filters.tags)
            and _taken_within(document.record.taken_at, filters)
            and _has_caption(document.captions, filters)
        )

    def _tagged(self, tags: Sequence[Tag], label: str) -> bool:
        ids = self.concepts.under(label) if self.concepts else frozenset[str]()
        return any(tag.label == label or tag.concept in ids for tag in tags)

    def _tag_facets(self, present: Collection[Document]) -> tuple[Facet, ...]:
        if self.concepts is None:
            return _counted({tag.label for tag in one.tags} for one in present)
        table = self.concepts
        labels = _counted({tag.label for tag in one.tags if not tag.concept} for one in present)
        ids = _counted(
            {above for tag in one.tags if tag.concept for above in table.broader(tag.concept)}
            for one in present
        )
        counts = [{one.value: one.images for one in found} for found in (labels, ids)]
        return tag_facets(counts[0], counts[1], table)

    def _searchable(self) -> list[str]:
        """Documents with a file and a vector, by id."""
        return [one for one in sorted(self.lookup(list(self.documents))) if one in self.vectors]

    def _evidence(
        self,
        ids: Sequence[str],
        query: EncodedQuery,
        matched: Sequence[tuple[Caption | None, float, float]],
    ) -> Evidence:
        known = {
            "caption": np.array([one[1] for one in matched], float),
            "generated": np.array([one[2] for one in matched], float),
            "words": np.array(self._coverage(ids, query.words, False), float),
            "generated_words": np.array(self._coverage(ids, query.words, True), float),
            "tag": np.array([self._tag_score(one, query) for one in ids], float),
        }
        if query.image is not None:
            products = [np.dot(self.vectors[one], query.image) for one in ids]
            known["image"] = np.array(products, float)
        if query.named is not None and ids:
            known["image"] += query.named.scores(np.stack([self.vectors[one] for one in ids]))
        return Evidence.of(len(ids), **known)

    def _matched(self, image_id: str, query: EncodedQuery) -> tuple[Caption | None, float, float]:
        """The best caption, and the best score of people's and of models' captions."""
        best: dict[bool, float] = {False: np.nan, True: np.nan}
        chosen: tuple[float, Caption | None] = (-np.inf, None)
        for owner, caption, vector in sorted(self.captions, key=lambda one: one[1].generated):
            if owner != image_id or query.caption is None:
                continue
            score = float(np.float32(np.dot(vector, query.caption)))
            score += query.caption_offsets.get(caption.language, 0.0)
            best[caption.generated] = float(np.fmax(best[caption.generated], score))
            if score > chosen[0]:
                chosen = (score, caption)
        return chosen[1], best[False], best[True]

    def _tag_score(self, image_id: str, query: EncodedQuery) -> float:
        tags = sorted(self.documents[image_id].tags, key=lambda tag: tag.confidence)
        return tag_score(query.concepts, {one.concept: one.confidence for one in tags})

    def _texts(self, image_id: str, generated: bool) -> list[list[str]]:
        """The words of every caption and tag by people, and of paths; or of those by models."""
        document = self.documents[image_id]
        texts = [one.text for one in document.captions if one.generated == generated]
        texts += [tag.label for tag in document.tags if tag.generated == generated]
        texts += [] if generated else document.record.paths
        return [re.findall(r"\w+", text.lower()) for text in texts]

    def _coverage(self, ids: Sequence[str], words: Sequence[str], generated: bool) -> list[float]:
        """The weight of the query's rare words that each document has, from 0 to 1."""
        present = {one: set().union(*self._texts(one, generated)) for one in self._searchable()}
        count = Counter(word for text in present.values() for word in text)
        weights = {word: word_weight(len(self), count[word]) for word in words}
        rare = [word for word in words if is_rare(len(self), count[word])]
        return [
            sum(weights[word] for word in rare if word in present[one])
            / (sum(weights.values()) or 1.0)
            for one in ids
        ]

    def _has_phrases(self, image_id: str, phrases: Sequence[Sequence[str]]) -> bool:
        written = (*self._texts(image_id, False), *self._texts(image_id, True))
        texts = [f" {' '.join(text)} " for text in written]
        return all(any(f" {' '.join(phrase)} " in text for text in texts) for phrase in phrases)


def _lies_under(paths: Sequence[str], folders: Sequence[str]) -> bool:
    return not folders or any(
        PurePath(path).is_relative_to(folder) for path in paths for folder in folders
    )


def _taken_within(taken_at: datetime | None, filters: Filters) -> bool:
    if filters.taken_from is None and filters.taken_until is None:
        return True
    if taken_at is None:
        return False
    earliest = datetime.combine(filters.taken_from or datetime.min.date(), time.min)
    latest = datetime.combine(filters.taken_until or datetime.max.date(), time.max)
    return earliest <= taken_at <= latest


def _has_caption(captions: Sequence[Caption], filters: Filters) -> bool:
    """A language and an author must be met by one and the same caption."""
    if filters.caption_language is None and filters.written_by is None:
        return True
    return any(
        filters.caption_language in (None, caption.language)
        and filters.written_by in (None, _author(caption))
        for caption in captions
    )


def _author(caption: Caption) -> str:
    return "models" if caption.generated else "people"


def _counted(values: Iterable[set[str]]) -> tuple[Facet, ...]:
    """How many documents have each value; most first, then by name."""
    counts = Counter(value for one in values for value in one)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Facet(value, images) for value, images in ordered)


__all__ = [
    "COLOURS",
    "CONCEPTS",
    "FakeBackend",
    "FakeCaptioner",
    "FakeImageEncoder",
    "FakeTagger",
    "FakeTextEncoder",
    "colour_image",
]
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (255, 0, 0),
    "green": (0, 160, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "purple": (128, 0, 160),
    "orange": (255, 140, 0),
}
# In encoders.text.concepts, where the id is not the name.
_CONCEPT_IDS: Mapping[str, str] = {"orange": "orange-color"}
_BILINEAR = 2  # PIL.Image.Resampling.BILINEAR; this folder does without Pillow
_RED = 0  # the first colour, and the first concept
# The word for each concept in (en, zh, ja). The first eight are the colours, in order.
CONCEPTS: tuple[tuple[str, str, str], ...] = (
    ("red", "红", "赤"),
    ("green", "绿", "緑"),
    ("blue", "蓝", "青"),
    ("yellow", "黄", "黄"),
    ("black", "黑", "黒"),
    ("white", "白", "白"),
    ("purple", "紫", "紫"),
    ("orange", "橙", "オレンジ"),
    ("cat", "猫", "猫"),
    ("dog", "狗", "犬"),
    ("car", "车", "車"),
    ("tree", "树", "木"),
    ("sea", "海", "海"),
    ("house", "房子", "家"),
    ("bread", "面包", "パン"),
    ("flower", "花", "花"),
)


@dataclass(slots=True)
class FakeImageEncoder:
    """Colour shares as features; the projection keeps the colours and turns them by `turn`.

    Two encoders of one `backbone` but different `turn` stand for one backbone with two
    projections. `embedded` counts the images encoded, `batches` the sizes of their batches.
    """

    backbone: str = "toy"
    turn: int = 0
    penalty: float = 0.0  # of an image that is all red
    embedded: int = 0
    batches: list[int] = field(default_factory=list)
    maps: bool = True  # whether it gives a feature map
    feature_dimension: int = len(COLOURS) + 1
    dimension: int = len(COLOURS) + 1

    @property
    def name(self) -> str:
        """The backbone's name."""
        return self.backbone

    @property
    def digest(self) -> str:
        """Stands for the weights: equal names, equal features."""
        return f"digest-of-{self.backbone}"

    def preprocess(self, image: Any) -> Pixels:
        """16 x 16 pixels of an opened image (PIL)."""
        return np.asarray(image.convert("RGB").resize((16, 16), _BILINEAR))

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, 9): shares of the eight colours, then the mean brightness."""
        self.embedded += len(pixels)
        self.batches.append(len(pixels))
        return np.stack([_colour_shares(one) for one in pixels])

    def feature_maps(self, pixels: Sequence[Pixels]) -> ImageFeatures:
        """The features, and those of the image's quarters (N, 4, 9) if it `maps`."""
        pooled = self.features(pixels)
        if not self.maps:
            return ImageFeatures(pooled)
        cells = [_colour_shares(cell) for one in pixels for cell in _quarters(one)]
        return ImageFeatures(pooled, np.reshape(cells, (len(pixels), 4, -1)).astype(np.float32))

    def project(self, features: Vectors) -> Vectors:
        """(N, 9) -> (N, 8) and a penalty."""
        colours = unit(np.roll(features[:, : len(COLOURS)], self.turn, axis=1))
        return as_document(colours, self.penalty * colours[:, _RED])


@dataclass(frozen=True, slots=True)
class FakeTextEncoder:
    """Counts the concepts a sentence names: eight colours visually, all sixteen for captions."""

    name: str = "toy-words"
    digest: str = "digest-of-toy-words"
    languages: tuple[str, ...] = LANGUAGES
    turn: int = 0
    weight: float = 0.4
    floor: float = 0.1
    penalty: float = 0.0  # of a caption that says nothing but red
    dimension: int = len(COLOURS) + 1
    caption_dimension: int = len(CONCEPTS) + 1
    evidence: EvidenceModel | None = None

    def detect(self, text: str) -> str:
        """Kana is Japanese, other Han Chinese, the rest English."""
        if re.search("[\u3040-\u30ff]", text):
            return "ja"
        return "zh" if re.search("[\u4e00-\u9fff]", text) else "en"

    def convex(self, language: str) -> ConvexCombination:
        """The same for all languages."""
        return ConvexCombination(self.weight, self.floor)

    def evidence_model(self, text: str, language: str) -> EvidenceModel | None:
        """The one given, for all queries."""
        return self.evidence

    def unknown_words(self, text: str, language: str) -> tuple[str, ...]:
        """All words of a sentence that names no concept."""
        return () if np.any(_concept_counts(text, language)) else tuple(text.split())

    def understand(self, text: str, language: str | None = None) -> Understood:
        """What is asked for with "show me"."""
        language = language or self.detect(text)
        asked = text.removeprefix("show me ")
        quoted = (self.words(phrase) for phrase in phrases(text))
        return Understood(
            language=language,
            vectors=self.encode([asked], language),
            keywords=tuple(dict.fromkeys(self.words(asked))),
            phrases=tuple(words for words in quoted if words),
            concepts=_concepts(asked, self.detect(asked)),
            convex=self.convex(language),
            model=self.evidence_model(asked, language),
            background={"image": 0.0, "caption": 0.0},
        )

    def encode(self, texts: Sequence[str], language: str) -> EncodedText:
        """Unit vectors of the concepts named; zero and not known where there is none."""
        if language not in self.languages:
            known = ", ".join(self.languages)
            raise UnknownLanguage(f"no model reads '{language}'; choose one of {known}")
        counts = np.zeros((len(texts), len(CONCEPTS)), np.float32)
        for row, text in enumerate(texts):
            counts[row] = _concept_counts(text, language)
        colours = np.roll(counts[:, : len(COLOURS)], self.turn, axis=1)
        known_rows = tuple(bool(row.any()) for row in counts)
        return EncodedText(as_query(unit(colours)), as_query(unit(counts)), known_rows)

    def as_documents(self, captions: Vectors) -> Vectors:
        """Captions have a hubness penalty for the red in them."""
        concepts = strip_bias(captions)
        return as_document(concepts, self.penalty * concepts[:, _RED])

    def words(self, text: str) -> tuple[str, ...]:
        """Lower-case words."""
        return tuple(re.findall(r"\w+", text.lower()))


@dataclass(slots=True)
class FakeTagger:
    """Tags an image with its colours: their names, and their shares as probabilities.

    `tagged` counts the images; `unlinked` colours get no concept.
    """

    name: str = "toy-tags@1"
    unlinked: frozenset[str] = frozenset()
    tagged: int = 0

    def concept_probabilities(self, features: ImageFeatures) -> tuple[tuple[str, ...], Vectors]:
        """None: its colours are no concepts."""
        return (), np.zeros((len(features), 0), np.float32)

    def tag(self, features: ImageFeatures) -> tuple[tuple[Tag, ...], ...]:
        """The colours of more than a tenth of the image, largest share first."""
        self.tagged += len(features)
        return tuple(tuple(self._tags(row)) for row in features.pooled[:, : len(COLOURS)])

    def _tags(self, shares: Vectors) -> Iterator[Tag]:
        source = GENERATED + self.name
        for at in np.argsort(-shares, kind="stable"):
            if shares[at] > 0.1:
                colour = CONCEPTS[at][0]
                concept = "" if colour in self.unlinked else _CONCEPT_IDS.get(colour, colour)
                yield Tag(colour, "en", round(float(shares[at]), 4), source, concept)


@dataclass(slots=True)
class FakeCaptioner:
    """Says of which colour most of an image is, in three languages; `captioned` counts images."""

    name: str = "toy-captions@1"
    languages: tuple[str, ...] = LANGUAGES
    captioned: int = 0

    def caption(self, features: ImageFeatures) -> tuple[tuple[Caption, ...], ...]:
        """One sentence for each language; its probability is the colour's share."""
        if features.grid is None:
            raise ValueError("captions need the feature map of the backbone")
        self.captioned += len(features)
        shares = features.grid[:, :, : len(COLOURS)].mean(axis=1)  # (N, 8), over the cells
        return tuple(tuple(self._captions(row)) for row in shares)

    def _captions(self, shares: Vectors) -> Iterator[Caption]:
        at = int(shares.argmax())
        texts = zip(LANGUAGES, ("a {} image", "{}色的图像", "{}の画像"), CONCEPTS[at], strict=True)
        for language, text, name in texts:
            if language in self.languages:
                confidence = round(float(shares[at]), 4)
                yield Caption(text.format(name), language, GENERATED + self.name, confidence)


def colour_image(*colours: str, size: int = 16) -> Pixels:
    """An image of equal vertical stripes, one for each colour named."""
    stripes = np.array([COLOURS[colour] for colour in colours], np.uint8)  # (K, 3)
    columns = stripes[np.arange(size) * len(colours) // size]  # (W, 3)
    return np.tile(columns, (size, 1, 1))


def _colour_shares(pixels: Pixels) -> Vectors:
    flat = pixels.reshape(-1, 3).astype(np.float32)  # (P, 3)
    palette = np.array(list(COLOURS.values()), np.float32)  # (8, 3)
    distances = ((flat[:, None] - palette[None]) ** 2).sum(axis=2)  # (P, 8)
    counts = np.bincount(distances.argmin(axis=1), minlength=len(palette))
    return np.append(counts / len(flat), flat.mean() / 255).astype(np.float32)


def _quarters(pixels: Pixels) -> Iterator[Pixels]:
    middle = len(pixels) // 2
    for rows in (pixels[:middle], pixels[middle:]):
        yield from (rows[:, :middle], rows[:, middle:])


def _concepts(text: str, language: str) -> tuple[frozenset[str], ...]:
    """The colours and things that a text names."""
    counts = _concept_counts(text, language)
    names = [names[0] for names, count in zip(CONCEPTS, counts, strict=True) if count]
    return tuple(frozenset({_CONCEPT_IDS.get(name, name)}) for name in names)


def _concept_counts(text: str, language: str) -> Vectors:
    column = LANGUAGES.index(language)
    words = re.findall("[a-z]+", text.lower())
    return np.array(
        [words.count(names[0]) if column == 0 else text.count(names[column]) for names in CONCEPTS],
        np.float32,
    )
