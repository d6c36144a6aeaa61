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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import replacing, writing
from capsearch.encoders.text import concepts
from capsearch.engine.bounds import DEEPER
from capsearch.engine.evidence import Floats, is_rare, tag_score, word_weight
from capsearch.engine.records import GENERATED, TAKEN_FROM, Document
from capsearch.indexer.sqlite import nearest
from capsearch.indexer.sqlite.arrays import Slots, VectorFile
from capsearch.indexer.sqlite.catalog import SqliteCatalog, within
from capsearch.indexer.sqlite.writer import CatalogWriter

_BATCH = 2048  # images
PEOPLES, GENERATED_KIND = _TABLES = "words", "generated_words"
# The documents with a phrase in what anyone wrote; it is given once for each table.
_PHRASE = " UNION ALL ".join(f"SELECT rowid FROM {one} WHERE {one} MATCH ?" for one in _TABLES)
_MAX_KNOWN = 10_000  # words whose counts are remembered
MAX_WORDS = 64  # of one query; rarer ones first
_BETWEEN_TEXTS = " ¶ "  # a token that no text folds to: phrases do not run across


@dataclass(frozen=True, slots=True)
class WordMatches:
    """The weight of the query's words in each document (by number) that has rare ones."""

    weights: Mapping[int, float]
    total: float  # of all words of the query

    def coverage(self, number: int | None) -> float:
        """The share of the query's words that a document has, by weight, from 0 to 1."""
        found = 0.0 if number is None else self.weights.get(number, 0.0)
        return found / self.total if found else 0.0


class WordCounts:
    """In how many documents words occur. SQLite reads through all of them to count."""

    def __init__(self) -> None:
        self._revision, self._known = -1, dict[tuple[str, str], int]()

    def of(
        self, catalog: SqliteCatalog, words: Sequence[str], table: str = PEOPLES
    ) -> dict[str, int]:
        """The counts as of the catalog's revision, each counted once; 0 for an unknown word."""
        revision = catalog.revision()
        if revision != self._revision or len(self._known) > _MAX_KNOWN:
            self._revision, self._known = revision, {}
        sql, known = f"SELECT doc FROM {table}_vocab WHERE term = ?", self._known
        for word in (one for one in words if (table, one) not in known):
            rows = catalog.rows(sql, (word,))
            known[table, word] = int(rows[0][0]) if rows else 0
        return {word: known[table, word] for word in words}


def match(
    catalog: SqliteCatalog,
    words: Sequence[str],
    documents: int,
    known: WordCounts,
    table: str = PEOPLES,
) -> WordMatches:
    """Where the words of a query occur."""
    if not words:
        return WordMatches({}, 0.0)
    counts = known.of(catalog, words, table)
    weights = {word: word_weight(documents, counts[word]) for word in words}
    rare = [word for word in words if is_rare(documents, counts[word])]
    found: dict[int, float] = defaultdict(float)
    for word in sorted(rare, key=lambda one: (counts[one], one))[:MAX_WORDS]:
        sql = f"SELECT rowid FROM {table} WHERE {table} MATCH ?"
        for (number,) in catalog.rows(sql, (_quoted([word]),)):
            found[number] += weights[word]
    return WordMatches(found, sum(weights.values()))


def with_phrases(phrases: Sequence[Sequence[str]]) -> tuple[str, tuple[str, ...]]:
    """A condition on images (`i`) in which all of these occur, word after word; its values.

    Each may occur in what people wrote or in what a model wrote.
    """
    conditions = " AND ".join([f"i.number IN ({_PHRASE})"] * len(phrases))
    return conditions, tuple(_quoted(phrase) for phrase in phrases for _ in _TABLES)


def occurrences(catalog: SqliteCatalog, phrases: Sequence[Sequence[str]], limit: int) -> int:
    """In how many documents the rarest of these occurs, at most; counted up to `limit`."""
    sql = f"SELECT count(*) FROM ({_PHRASE} LIMIT {limit})"
    return min(int(catalog.rows(sql, [_quoted(one)] * len(_TABLES))[0][0]) for one in phrases)


def texts_of(document: Document) -> Iterator[str]:
    """What people wrote about an image, and what its files and folders are called."""
    yield from (caption.text for caption in document.captions if not caption.generated)
    yield from (tag.label for tag in document.tags if not tag.generated)
    yield from (text for key, text in document.metadata.items() if key != TAKEN_FROM)
    yield from (_path_text(path) for path in document.record.paths)


def generated_texts_of(document: Document) -> Iterator[str]:
    """What models wrote about an image: captions, and the names of tags in every language."""
    yield from (caption.text for caption in document.captions if caption.generated)
    for tag in document.tags:
        if tag.generated and tag.concept in concepts.all_concepts():
            for names in concepts.by_id(tag.concept).names.values():
                yield from names
        elif tag.generated:
            yield tag.label


def tokens_of(
    document: Document | None,
    words_of: Callable[[str], Sequence[str]],
    texts: Callable[[Document], Iterator[str]] = texts_of,
) -> str:
    """What an index holds for a document: texts as tokens; nothing for one without a file."""
    found = () if document is None else texts(document)
    return _BETWEEN_TEXTS.join(" ".join(words_of(text)) for text in found)


def update_words(writer: CatalogWriter, words_of: Callable[[str], Sequence[str]]) -> Iterator[None]:
    """Indexes the words of images that something was written about; yields after each batch."""
    while stale := writer.stale_words(_BATCH):
        documents = writer.catalog.documents([image_id for image_id, _ in stale])
        found = [(number, documents.get(one)) for one, number in stale]
        with writer.transaction():
            for table, texts in ((PEOPLES, texts_of), (GENERATED_KIND, generated_texts_of)):
                writer.put_words(
                    table, [(number, tokens_of(one, words_of, texts)) for number, one in found]
                )
        yield


def _path_text(path: str) -> str:
    """The part of a path that says something: the file's name and the two folders above."""
    *folders, name = path.replace("\\", "/").split("/")
    return " ".join([*folders[-2:], name.rpartition(".")[0] or name])


def _quoted(words: Sequence[str]) -> str:
    """An FTS5 phrase; a folded token holds no quotation mark, but who knows."""
    return '"' + " ".join(word.replace('"', "") for word in words) + '"'


# Of each concept by index, without the rows of the images that are not among the surest.
_TOP = (
    "SELECT i.slot, t.confidence FROM (SELECT image_id, confidence FROM tags WHERE concept != '' "
    "AND concept IN (SELECT value FROM json_each(?)) ORDER BY confidence DESC LIMIT ?) t "
    "LEFT JOIN images i ON i.id = t.image_id"
)
# An image has a few tags, a query may name hundreds of concepts: no search by concept (+).
_OF = (
    "SELECT image_id, concept, confidence FROM tags "
    "WHERE image_id IN (SELECT value FROM json_each(?)) AND +concept != '' "
    "AND +concept IN (SELECT value FROM json_each(?)) ORDER BY confidence"
)


class TagMatches:
    """The tags of documents for one query."""

    def __init__(self, catalog: SqliteCatalog, concepts: tuple[frozenset[str], ...]) -> None:
        self._catalog = catalog
        self._concepts = concepts
        self._found: list[_Surest] = []
        self._reached = 0

    def top(self, depth: int) -> tuple[Slots, Floats, float]:
        """The surest `depth` documents for each thing named, and the most that each can score;
        the most that any other can.

        A document with two such tags may take the place of two.
        """
        if not self._concepts:
            return np.empty(0, np.int64), np.empty(0), 0.0
        if depth > self._reached:
            self._reached = depth * (1 if self._found else DEEPER)
            self._found = [self._surest(ids, self._reached) for ids in self._concepts]
        slots = np.unique(np.concatenate([one.slots[:depth] for one in self._found]))
        slots = slots[slots >= 0]
        each = [one.most(slots, depth) for one in self._found]
        outside = [one.outside(depth) for one in self._found]
        return slots, np.mean(each, axis=0), sum(outside) / len(outside)

    def scores(self, ids: Sequence[str]) -> Floats:
        """(n,) the score of each document."""
        found = np.zeros(len(ids))
        if not self._concepts:
            return found
        named = sorted(frozenset[str]().union(*self._concepts))
        tags: dict[str, dict[str, float]] = defaultdict(dict)
        for image_id, concept, confidence in self._catalog.rows(
            _OF, (json.dumps(list(ids)), json.dumps(named))
        ):
            tags[image_id][concept] = confidence
        for at, image_id in enumerate(ids):
            if image_id in tags:
                found[at] = tag_score(self._concepts, tags[image_id])
        return found

    def _surest(self, ids: frozenset[str], depth: int) -> _Surest:
        rows = self._catalog.rows(_TOP, (json.dumps(sorted(ids)), depth))
        rows.sort(key=lambda row: -row[1])
        slots = [-1 if slot is None else slot for slot, _ in rows]
        return _Surest(np.array(slots, np.int64), np.array([share for _, share in rows], float))


@dataclass(frozen=True, slots=True)
class _Surest:
    """The surest tags of some concepts: their documents (-1: without a vector), and how sure."""

    slots: Slots
    shares: Floats

    def most(self, slots: Slots, depth: int) -> Floats:
        """(n,) how sure the tags of these documents, ascending, can be."""
        shares = np.full(len(slots), self.outside(depth))
        found = self.slots[:depth] >= 0
        at = np.searchsorted(slots, self.slots[:depth][found])
        np.maximum.at(shares, at, self.shares[:depth][found])
        return shares

    def outside(self, depth: int) -> float:
        """The most that a document has without these; 0 if there are no more."""
        return float(self.shares[depth - 1]) if len(self.shares) >= depth else 0.0


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


@dataclass(frozen=True, slots=True)
class CaptionImages:
    """The rows of images by the rows of their captions, as far as the cache has them."""

    known: NDArray[np.int32]
    people: bool  # wrote any of these, or there is no cache
    images: int  # rows there are

    @classmethod
    def open(cls, captions: VectorFile, images: VectorFile) -> CaptionImages:
        """The cache beside the captions, or an empty one."""
        known = _read(captions.images_path, images.generation)
        if known is None or len(known.numbers) > captions.rows:
            known = _File(np.empty(0, np.int32), people=True)
        many_later = captions.rows - len(known.numbers) > _LACKING  # too many to look up
        return cls(known.numbers, known.people or many_later, images.rows)

    def by_people(self, catalog: SqliteCatalog) -> bool:
        """Whether people may have written any caption with a vector."""
        later = f"slot >= {len(self.known)} AND {_BY_PEOPLE}"
        return self.people or bool(catalog.rows(_ANY.format(later)))

    def of(self, catalog: SqliteCatalog, captions: Slots) -> Slots:
        """The row of each caption's image, below 0 for a caption that has none (any more)."""
        found = np.full(len(captions), _UNKNOWN, np.int64)
        cached = captions < len(self.known)
        found[cached] = self.known[captions[cached]]
        found[found >= self.images] = _UNKNOWN  # of a later state, or damaged
        at = np.flatnonzero((found < 0) & (found != _NONE))
        if len(at):
            unknown = captions[at].tolist()
            sql = _IMAGES.format(within("c.slot", unknown) + " AND i.slot IS NOT NULL")
            looked_up: dict[int, int] = dict(catalog.rows(sql))
            found[at] = [looked_up.get(one, _NONE) for one in unknown]
        return found


def refresh(catalog: SqliteCatalog) -> None:
    """Writes the cache if there are many captions and it lacks more than some of them."""
    captions, images = catalog.array("captions"), catalog.array("vectors")
    path = captions.images_path
    if not nearest.needs_codes(captions.view()):
        path.unlink(missing_ok=True)
        return
    known = CaptionImages.open(captions, images).known
    if not len(known) or captions.rows - len(known) > _LACKING:
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
            numbers = np.memmap(file, "<i4", "r", offset=_LINE, shape=(rows,))
    except (OSError, ValueError):
        return None
    # On Windows a mapped file cannot be replaced.
    return _File(np.array(numbers) if os.name == "nt" else numbers, people)


def _line(images: int, rows: int, people: bool) -> bytes:
    stored = {"schema": SCHEMA, "images": images, "rows": rows, "people": people}
    return json.dumps(stored).encode().ljust(_LINE - 1) + b"\n"
