"""Words found as words: FTS5 indexes over folded tokens of captions, tags and file names.

Names, places and rare words are found this way, which a text encoder may not know. A word that
many documents have says little and is left to the vectors (engine.evidence.is_rare). What models
wrote has an index of its own, since it is worth less than what people wrote.

Documents by the tags of what a query names (engine.evidence.tag_score).

The image of each caption, by their rows: a cache of what the catalog knows, as plain numbers.

`captions-G.images` belongs to generation G of the caption vectors and to the generation of the
image vectors that its first line names. While both last, a row is given to one caption or image and
to no other, so that no entry becomes wrong: a caption that was deleted since leads to an image that
is then scored by what the catalog says. Rows that were added since, and captions whose image had no
vector, are looked up. What a damaged file contains can hide images from a search but do no other
harm.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import replacing, writing
from capsearch.engine.bounds import Best, distinct
from capsearch.engine.evidence import MAX_WORDS, Floats, is_rare, word_weight
from capsearch.engine.records import GENERATED, Document
from capsearch.engine.vectors import Slots
from capsearch.indexer.document import generated_texts_of, texts_of
from capsearch.indexer.sqlite.arrays import VectorFile
from capsearch.indexer.sqlite.catalog import SqliteCatalog, within
from capsearch.indexer.sqlite.writer import CatalogWriter

_BATCH = 2048  # images
PEOPLES, GENERATED_KIND = _TABLES = "words", "generated_words"
# The documents with a phrase in what anyone wrote; it is given once for each table.
_PHRASE = " UNION ALL ".join(
    f"SELECT rowid FROM {table} WHERE {table} MATCH ?" for table in _TABLES
)
_BETWEEN_TEXTS = " ¶ "  # a token that no text folds to: phrases do not run across


@dataclass(frozen=True, slots=True)
class WordMatches:
    """The weight of the query's words in each document (by slot) that has rare ones."""

    weights: Mapping[int, float]
    total: float  # of all words of the query

    def coverage(self, slots: Iterable[int]) -> Floats:
        """(n,) the share of the query's words that documents have, by weight, from 0 to 1."""
        return np.array([self.weights.get(slot, 0.0) for slot in slots], float) / (
            self.total or 1.0
        )

    def best(self) -> Best:
        """The documents with rare words; no other has any."""
        slots = np.array(sorted(self.weights), np.int64)
        return Best(slots, self.coverage(slots.tolist()), 0.0)


class WordIndex:
    """Where words occur in one revision of a catalog; what was looked up is kept."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._catalog = catalog
        self._counts: dict[tuple[str, str], int] = {}  # documents, by table and word
        self._slots: dict[tuple[str, str], list[int]] = defaultdict(list)  # of rare words

    def match(self, words: Sequence[str], documents: int) -> tuple[WordMatches, WordMatches]:
        """The words of a query in what people and in what models wrote, among so many documents."""
        self._count(words)
        rare = {
            table: [word for word in words if is_rare(documents, self._counts[table, word])]
            for table in _TABLES
        }
        for table, chosen in rare.items():
            chosen.sort(key=lambda word: (self._counts[table, word], word))
            del chosen[MAX_WORDS:]
        self._locate([(table, word) for table, chosen in rare.items() for word in chosen])
        people, models = (self._matches(table, words, rare[table], documents) for table in _TABLES)
        return people, models

    def _matches(
        self, table: str, words: Sequence[str], rare: Sequence[str], documents: int
    ) -> WordMatches:
        weights = {word: word_weight(documents, self._counts[table, word]) for word in words}
        by_slot: dict[int, float] = defaultdict(float)
        for word in rare:
            for slot in self._slots[table, word]:
                by_slot[slot] += weights[word]
        return WordMatches(by_slot, sum(weights.values()))

    def _count(self, words: Sequence[str]) -> None:
        unknown = [word for word in words if (PEOPLES, word) not in self._counts]
        if not unknown:
            return
        sql = " UNION ALL ".join(
            f"SELECT '{table}', term, doc FROM {table}_vocab "
            "WHERE term IN (SELECT value FROM json_each(?1))"
            for table in _TABLES
        )
        self._counts |= {(table, word): 0 for word in unknown for table in _TABLES}
        for table, word, count in self._catalog.rows(sql, (json.dumps(unknown),)):
            self._counts[table, word] = int(count)

    def _locate(self, rare: Sequence[tuple[str, str]]) -> None:
        """The documents with these words; those without a vector are left out."""
        unknown = [(table, word) for table, word in rare if (table, word) not in self._slots]
        if not unknown:
            return
        parts = " UNION ALL ".join(
            f"SELECT {at} AS at, rowid AS number FROM {table} WHERE {table} MATCH ?"
            for at, (table, _) in enumerate(unknown)
        )
        sql = (
            f"SELECT f.at, i.slot FROM ({parts}) f CROSS JOIN images i ON i.number = f.number "
            "WHERE i.slot IS NOT NULL"
        )
        self._slots |= {key: [] for key in unknown}
        for at, slot in self._catalog.rows(sql, [_quoted([word]) for _, word in unknown]):
            self._slots[unknown[at]].append(slot)


def with_phrases(phrases: Sequence[Sequence[str]]) -> tuple[str, tuple[str, ...]]:
    """A condition on images (`i`) in which all of these occur, word after word; its values.

    Each may occur in what people wrote or in what a model wrote.
    """
    conditions = " AND ".join([f"i.number IN ({_PHRASE})"] * len(phrases))
    return conditions, tuple(_quoted(phrase) for phrase in phrases for _ in _TABLES)


def occurrences(catalog: SqliteCatalog, phrases: Sequence[Sequence[str]], limit: int) -> int:
    """In how many documents the rarest of these occurs, at most; counted up to `limit`."""
    sql = f"SELECT count(*) FROM ({_PHRASE} LIMIT {limit})"
    return min(int(catalog.rows(sql, [_quoted(phrase)] * len(_TABLES))[0][0]) for phrase in phrases)


def tokens_of(
    document: Document | None,
    words_of: Callable[[str], Sequence[str]],
    texts: Callable[[Document], Iterator[str]] = texts_of,
) -> str:
    """What an index holds for a document: texts as tokens; nothing for one without a file."""
    written = () if document is None else texts(document)
    return _BETWEEN_TEXTS.join(" ".join(words_of(text)) for text in written)


def update_words(writer: CatalogWriter, words_of: Callable[[str], Sequence[str]]) -> Iterator[None]:
    """Indexes the words of images that something was written about; yields after each batch."""
    while stale := writer.stale_words(_BATCH):
        documents = writer.catalog.documents([image_id for image_id, _ in stale])
        changed = [(number, documents.get(image_id)) for image_id, number in stale]
        with writer.transaction():
            for table, texts in ((PEOPLES, texts_of), (GENERATED_KIND, generated_texts_of)):
                writer.put_words(
                    table,
                    [
                        (number, tokens_of(document, words_of, texts))
                        for number, document in changed
                    ],
                )
        yield


def _quoted(words: Sequence[str]) -> str:
    """An FTS5 phrase; a folded token holds no quotation mark, but who knows."""
    return '"' + " ".join(word.replace('"', "") for word in words) + '"'


# Of each concept by index, without the rows of the images that are not among the surest.
_SUREST = (
    "SELECT {} AS at, i.slot, t.confidence AS share FROM (SELECT image_id, confidence FROM tags "
    "WHERE concept != '' AND concept IN (SELECT value FROM json_each(?)) "
    "ORDER BY confidence DESC LIMIT ?) t LEFT JOIN images i ON i.id = t.image_id"
)


@dataclass(frozen=True, slots=True)
class _Surest:
    """The surest tags of some concepts: their documents (-1: without a vector), and how sure."""

    slots: Slots
    shares: Floats
    limit: int  # there are no more, if there are fewer

    def best(self, depth: int) -> Best:
        """The documents of the first `depth` tags."""
        slots, shares = self.slots[:depth], self.shares[:depth]
        outside = float(shares[-1]) if len(shares) == depth else 0.0
        return Best(slots[slots >= 0], shares[slots >= 0], outside)


class TagIndex:
    """Documents by their tags, in one revision of a catalog; what was looked up is kept."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._catalog = catalog
        self._surest: dict[frozenset[str], _Surest] = {}

    def best(self, things: Sequence[frozenset[str]], depth: int) -> Best:
        """The surest `depth` documents for each thing that a query names, by `tag_score`."""
        if not things:
            return Best(np.empty(0, np.int64), np.empty(0), 0.0)
        self._look_up([ids for ids in things if self._limit(ids) < depth], depth)
        each = [self._surest[ids].best(depth) for ids in things]
        slots = distinct([surest.keys for surest in each])
        most = np.mean([surest.at(slots) for surest in each], axis=0)
        return Best(slots, most, sum(surest.outside for surest in each) / len(each))

    def _limit(self, ids: frozenset[str]) -> int:
        return self._surest[ids].limit if ids in self._surest else 0

    def _look_up(self, things: Sequence[frozenset[str]], depth: int) -> None:
        if not things:
            return
        sql = " UNION ALL ".join(_SUREST.format(at) for at in range(len(things)))
        values = [value for ids in things for value in (json.dumps(sorted(ids)), depth)]
        rows: list[list[tuple[int, float]]] = [[] for _ in things]
        for at, slot, share in self._catalog.rows(sql, values):
            rows[at].append((-1 if slot is None else slot, share))
        for ids, tags in zip(things, rows, strict=True):
            tags.sort(key=lambda tag: -tag[1])
            slots = np.array([slot for slot, _ in tags], np.int64)
            self._surest[ids] = _Surest(slots, np.array([share for _, share in tags], float), depth)


SCHEMA = 1
_LINE = 128  # bytes of the first line, filled up with spaces
_UNKNOWN, _NONE = -1, -2  # the image had no vector; the caption was deleted
_LACKING = 2_000  # captions whose images are looked up rather than written
_BLOCK = 65_536
_IMAGES = "SELECT c.slot, i.slot FROM captions c CROSS JOIN images i ON i.id = c.image_id WHERE {}"
_ANY = "SELECT 1 FROM captions WHERE {} LIMIT 1"
_BY_PEOPLE = f"source NOT GLOB '{GENERATED}*'"


@dataclass(frozen=True, slots=True)
class _File:
    """What a file of this cache holds."""

    numbers: NDArray[np.int32]
    people: bool  # wrote any of these captions


class CaptionImages:
    """The rows of images by the rows of their captions, in one revision of a catalog.

    What the cache does not have is looked up, and kept.
    """

    def __init__(self, catalog: SqliteCatalog, captions: VectorFile, images: VectorFile) -> None:
        cached = _read(captions.images_path, images.generation)
        if cached is None or len(cached.numbers) > captions.rows:
            cached = _File(np.empty(0, np.int32), people=True)
        self._catalog, self._images = catalog, images.rows
        self.known = cached.numbers
        later = captions.rows - len(self.known)
        unknown = np.full(later, _UNKNOWN, np.int32)
        self._numbers = np.append(self.known, unknown) if later else self.known
        self._people = cached.people or later > _LACKING  # too many to look up

    @cached_property
    def by_people(self) -> bool:
        """Whether people may have written any caption with a vector."""
        later = f"slot >= {len(self.known)} AND {_BY_PEOPLE}"
        return self._people or bool(self._catalog.rows(_ANY.format(later)))

    def of(self, captions: Slots) -> Slots:
        """The row of each caption's image, below 0 for a caption that has none (any more)."""
        numbers = self._numbers[captions].astype(np.int64)
        numbers[numbers >= self._images] = _UNKNOWN  # of a later state, or damaged
        rows = np.flatnonzero((numbers < 0) & (numbers != _NONE))
        if len(rows):
            unknown = captions[rows].tolist()
            sql = _IMAGES.format(within("c.slot", unknown) + " AND i.slot IS NOT NULL")
            looked_up: dict[int, int] = dict(self._catalog.rows(sql))
            numbers[rows] = [looked_up.get(caption, _NONE) for caption in unknown]
            self._numbers[captions[rows]] = numbers[rows]
        return numbers


def refresh(catalog: SqliteCatalog) -> None:
    """Writes the cache if it lacks more than some captions, or a tenth of few."""
    captions, images = catalog.array("captions"), catalog.array("vectors")
    path = captions.images_path
    if not captions.rows:
        path.unlink(missing_ok=True)
        return
    known = CaptionImages(catalog, captions, images).known
    if captions.rows - len(known) > min(_LACKING, captions.rows // 10):
        numbers = np.append(known, _numbers(catalog, len(known), captions.rows))
        people = bool(catalog.rows(_ANY.format(f"+slot IS NOT NULL AND {_BY_PEOPLE}")))
        with writing(path):
            _write(path, images.generation, _File(numbers, people))


def _numbers(catalog: SqliteCatalog, start: int, stop: int) -> NDArray[np.int32]:
    """The entries of some captions, by what the catalog says now."""
    numbers = np.full(stop - start, _NONE, np.int32)
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop) - 1
        sql = _IMAGES.format(f"c.slot BETWEEN {first} AND {last}")
        for caption, image in catalog.rows(sql):
            numbers[caption - start] = _UNKNOWN if image is None else image
    return numbers


def _write(path: Path, images: int, content: _File) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_line(images, len(content.numbers), content.people))
        file.write(content.numbers.astype("<i4").tobytes())


def _read(path: Path, images: int) -> _File | None:
    """What a file holds that `_write` made for this generation of images, or None."""
    try:
        rows = (path.stat().st_size - _LINE) // 4
        with path.open("rb") as file:
            line = file.read(_LINE)
            people = line == _line(images, rows, people=True)
            if rows < 1 or not (people or line == _line(images, rows, people=False)):
                return None
            # Copied where it is written to: the file stays as it is.
            numbers = np.memmap(file, "<i4", "c", offset=_LINE, shape=(rows,))
    except (OSError, ValueError):
        return None
    # On Windows a mapped file cannot be replaced.
    return _File(np.array(numbers) if os.name == "nt" else numbers, people)


def _line(images: int, rows: int, people: bool) -> bytes:
    stored = {"schema": SCHEMA, "images": images, "rows": rows, "people": people}
    return json.dumps(stored).encode().ljust(_LINE - 1) + b"\n"
