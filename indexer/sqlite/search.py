"""One search: candidates by every source of evidence, scored from their rows, step by step.

No document outside the candidates can exceed the bound (engine.bounds), and no candidate what it
can score at most. Where codes find the candidates both hold but for what codes miss. What searches
read of a revision of the catalog is kept for the next ones (`Revision`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from capsearch.engine.bounds import (
    DEEPER,
    Best,
    Candidates,
    InParts,
    Ranked,
    Scored,
    distinct,
    settle,
)
from capsearch.engine.evidence import Evidence, Floats, tag_score
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import GENERATED, Filters, Source, Vectors
from capsearch.engine.vectors import Rows, Slots, exact_scores, image_scores
from capsearch.indexer.sqlite import nearest
from capsearch.indexer.sqlite.arrays import VectorFile
from capsearch.indexer.sqlite.catalog import SqliteCatalog, State, within
from capsearch.indexer.sqlite.matches import (
    CaptionImages,
    TagIndex,
    WordIndex,
    WordMatches,
    occurrences,
    with_phrases,
)
from capsearch.indexer.sqlite.nearest import ExactSearch, Nearest, most_image_scores, most_products

# Images, and twice as many captions, that a search of a large collection finds first; docs/scale.md
# has their recall. Of a small one, a quarter.
MIN_DEPTH = 600
HAS_FILE = "EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"
# Documents that pass a filter: these alone are compared, if they are not many of all.
_FEW, _FEW_SHARE = 20_000, 1 / 20
_SCORED = 2_000  # of these, all are scored
_FIRST_PART = 32  # candidates that are scored first
_CAPTIONS_PER_IMAGE = 2  # candidates by captions for each by its image: several belong to one
_DEEP = 25_600  # candidates; if less than a page of these pass a filter, few do
_OVERSAMPLING = 1.5  # rows found for each that is needed: codes miss some of the last
_KEPT = 50_000  # documents of which rows are kept
_NOTHING = np.empty(0, np.int64)
# What documents are scored by: their ids, captions with vectors, and tags.
_ROWS = (
    f"SELECT i.slot, 0, i.id, NULL, NULL, NULL FROM images i WHERE {{0}} AND {HAS_FILE} UNION ALL "
    f"SELECT i.slot, 1, c.slot, c.language, c.source GLOB '{GENERATED}*', c.id "
    "FROM images i CROSS JOIN captions c ON c.image_id = i.id WHERE {0} AND c.slot IS NOT NULL "
    "UNION ALL SELECT i.slot, 2, t.concept, t.confidence, NULL, NULL "
    "FROM images i CROSS JOIN tags t ON t.image_id = i.id WHERE {0} AND t.concept != ''"
)


class CaptionRow(NamedTuple):
    """A caption with a vector; captions sort as they count among equals: people's, older ones."""

    generated: bool
    number: int  # its id in the catalog
    slot: int
    language: str


@dataclass(slots=True)
class DocumentRow:
    """What a document with a vector and a file is scored by, besides vectors and words."""

    slot: int
    image_id: str
    captions: list[CaptionRow] = field(default_factory=list)
    tags: dict[str, float] = field(default_factory=dict)  # confidences by concept


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A vector file, open for search."""

    file: VectorFile
    rows: Rows
    search: Nearest

    @classmethod
    def of(cls, file: VectorFile, before: OpenFile | None) -> OpenFile:
        """Opens it, or what was added to it since `before`."""
        if before is None:
            return cls(file, file.view(), nearest.open_search(file))
        if before.file == file:
            return before
        grown = (before.file.generation, before.file.width) == (file.generation, file.width)
        return cls(file, file.view(), nearest.open_search(file, before.search if grown else None))


class Revision:
    """What searches have read of one revision of a catalog, which the next ones need not read.

    What is open of the vector files goes on to the revision after it.
    """

    def __init__(
        self, catalog: SqliteCatalog, state: State, before: Revision | None = None
    ) -> None:
        self.state, self._catalog = state, catalog
        self.words, self.tags = WordIndex(catalog), TagIndex(catalog)
        self._rows: dict[int, DocumentRow | None] = {}
        images, captions = state.arrays["vectors"], state.arrays["captions"]
        self.caption_images = CaptionImages(catalog, captions, images)
        self.images: OpenFile = OpenFile.of(images, before.images if before else None)
        self.captions: OpenFile = OpenFile.of(captions, before.captions if before else None)

    def rows(self, slots: Sequence[int]) -> list[DocumentRow]:
        """Documents by the rows of their vectors; those that are gone or have no file are not."""
        if len(self._rows) > _KEPT:
            self._rows.clear()
        unknown = [slot for slot in slots if slot not in self._rows]
        if unknown:
            self._read(unknown)
        return [row for slot in slots if (row := self._rows[slot]) is not None]

    def _read(self, slots: Sequence[int]) -> None:
        self._rows |= dict.fromkeys(slots)
        for slot, kind, *values in self._catalog.rows(_ROWS.format(within("i.slot", slots))):
            if kind == 0:
                self._rows[slot] = DocumentRow(slot, values[0])
                continue
            row = self._rows[slot]
            if row is None:  # it has no file
                continue
            if kind == 1:
                caption, language, generated, number = values
                row.captions.append(CaptionRow(bool(generated), number, caption, language))
            else:
                concept, confidence = values[:2]
                row.tags[concept] = max(confidence, row.tags.get(concept, 0.0))
        for slot in slots:
            if (row := self._rows[slot]) is not None:
                row.captions.sort()


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which documents may be hits.

    Few are looked up once, and candidates are taken from these. Where many may be hits,
    candidates are taken from all and checked by `condition`: looking up half of a million takes
    longer than any search.
    """

    condition: tuple[str, Sequence[object]] = ("TRUE", ())  # on images `i`; its values
    few: Slots | None = None  # ascending

    @classmethod
    def by(
        cls, catalog: SqliteCatalog, filters: Filters, phrases: Sequence[Sequence[str]], of: int
    ) -> Allowed:
        """Documents, of so many, that pass the filters and in which the phrases occur."""
        if not filters and not phrases:
            return cls()
        most = max(_SCORED, min(_FEW, int(of * _FEW_SHARE)))
        few: list[tuple[str, Sequence[object]]] = [*catalog.few(filters, most)]
        rare = bool(few)
        if phrases:
            few.append(with_phrases(phrases))
            rare |= occurrences(catalog, phrases, most) < most
        conditions = [catalog.where(filters), *few]
        checked = cls(
            (
                " AND ".join(condition for condition, _ in conditions),
                [value for _, operands in conditions for value in operands],
            )
        )
        return checked.looked_up(catalog) if rare else checked

    @property
    def all(self) -> bool:
        """Every document may be a hit."""
        return self.few is None and self.condition == ("TRUE", ())

    def listed(self, depth: int) -> Slots | None:
        """The documents, if they are so few that all of them are scored."""
        return self.few if self.few is not None and len(self.few) <= max(_SCORED, depth) else None

    def looked_up(self, catalog: SqliteCatalog) -> Allowed:
        """The same with its documents looked up."""
        return Allowed(few=self._slots(catalog, "TRUE"))

    def among(self, catalog: SqliteCatalog, slots: Slots) -> Slots:
        """Those of some documents that pass the condition."""
        if self.condition == ("TRUE", ()) or not len(slots):
            return slots
        return self._slots(catalog, within("i.slot", slots.tolist()))

    def inside(self, best: Best) -> Best:
        """The documents that may be hits, where these were looked up."""
        if self.few is None:
            return best
        rows = np.isin(best.keys, self.few)
        return Best(best.keys[rows], best.most[rows], best.outside)

    def _slots(self, catalog: SqliteCatalog, condition: str) -> Slots:
        passing, values = self.condition
        sql = f"SELECT slot FROM images i WHERE slot IS NOT NULL AND {condition} AND {passing}"
        rows = catalog.rows(sql, values)
        return np.sort(np.array([slot for (slot,) in rows], np.int64))


@dataclass(frozen=True, slots=True)
class ComparedRows:
    """Rows of a vector file that are all compared with a query, and the most that each scores.

    `score` knows it closer, for some of them.
    """

    slots: Slots
    most: Floats
    score: Callable[[Slots], Floats]

    def start(self, depth: int) -> None:
        """Everything is done."""

    def best(self, depth: int) -> Best:
        """The best `depth` rows."""
        if depth >= len(self.slots):
            return Best(self.slots, self.most, np.nan)
        top = np.argpartition(-self.most, depth - 1)[:depth]
        return Best(self.slots[top], self.most[top], float(self.most[top].min()))

    def of(self, slots: Slots) -> Floats:
        """The most that some of them score."""
        return self.score(slots)


@dataclass(slots=True)
class FoundRows:
    """Rows that a search by codes finds, in a thread, and the most that each scores.

    The first search looks ahead: the next step needs no second scan.
    """

    search: Nearest
    vector: Vectors  # they are found by
    score: Callable[[Slots], Floats]
    rows: int  # in the file
    _slots: Slots = field(default_factory=_NOTHING.copy)
    _scores: Floats = field(default_factory=lambda: np.empty(0))
    _ahead: Slots | None = None  # not scored yet
    _reached: int = 0  # with these
    _going_on: Future[None] | None = None

    def start(self, depth: int) -> None:
        """Begins to search for what `best` will be asked for."""
        more = int(_OVERSAMPLING * depth)
        if self._going_on is None and len(self._slots) < min(more, self.rows):
            self._going_on = nearest.in_thread(self._find, more)

    def best(self, depth: int) -> Best:
        """The best `depth` rows of those that were found."""
        self.start(depth)
        if self._going_on is not None:
            self._going_on.result()
            self._going_on = None
        slots, scores = self._slots[:depth], self._scores[:depth]
        if len(slots) >= self.rows:
            return Best(slots, scores, np.nan)
        return Best(slots, scores, float(scores[-1]) if len(scores) else np.inf)

    def of(self, slots: Slots) -> Floats:
        """What rows score."""
        return self.score(slots)

    def _find(self, more: int) -> None:
        if self._ahead is not None and more <= self._reached:
            self._put(self._ahead, self._slots, self._scores)
            self._ahead = None
            return
        depths = [more] if len(self._slots) else [more, more * DEEPER]
        found, *ahead = self.search.steps(self.vector, depths)
        self._put(found, _NOTHING, np.empty(0))
        self._ahead, self._reached = (ahead[0] if ahead else None), depths[-1]

    def _put(self, found: Slots, slots: Slots, scores: Floats) -> None:
        """What was found takes its place among scored rows."""
        slots, scores = np.append(slots, found), np.append(scores, self.score(found))
        order = np.lexsort((slots, -scores))
        self._slots, self._scores = slots[order], scores[order]


class Search:
    """One search inside one snapshot."""

    def __init__(
        self,
        catalog: SqliteCatalog,
        revision: Revision,
        query: EncodedQuery,
        allowed: Allowed,
        documents: int,
    ) -> None:
        self._catalog, self._revision, self._query = catalog, revision, query
        self._allowed, self._documents = allowed, documents

    def ranked(self, stop: int) -> list[Ranked[DocumentRow]]:
        """At least the first `stop` of the ranking, or all of it."""
        in_parts = InParts[DocumentRow](self._candidates, self._score, _FIRST_PART)
        depth = min(MIN_DEPTH, max(MIN_DEPTH // 4, len(self._revision.images.rows) // 64))
        return settle(self._query, stop, depth, in_parts)

    def page(self, ranked: Sequence[Ranked[DocumentRow]]) -> tuple[Found, ...]:
        """Documents with the reasons for their scores."""
        documents, captions = self._catalog.page([hit.image_id for hit in ranked])
        sources = self._query.fusion.sources
        return tuple(
            hit.found(documents[hit.image_id], captions.get(hit.caption), sources) for hit in ranked
        )

    def _candidates(self, depth: int) -> Candidates:
        """The best `depth` documents by every source of the fusion, and those with rare words."""
        query, every = self._query, len(self._revision.images.rows)
        if depth > _DEEP and self._allowed.few is None and not self._allowed.all:
            self._allowed = self._allowed.looked_up(self._catalog)
            for name in ("_images", "_captions"):
                self.__dict__.pop(name, None)  # they were searched among all
        if not query.blind and (listed := self._allowed.listed(depth)) is not None:
            return Candidates(listed, None, -np.inf)
        if self._images:
            self._images.start(depth)
        if self._captions:
            self._captions.start(depth * _CAPTIONS_PER_IMAGE)
        best = dict(self._by_text(depth))
        if query.caption is not None:
            best["generated"] = self._by_captions(depth)
            by_people = query.blind or self._revision.caption_images.by_people
            best["caption"] = best["generated"] if by_people else Best.none()
        if query.image is not None:
            best["image"] = self._by_image(depth, [source.keys for source in best.values()])
        complete = best["tag"].outside == 0.0 if query.blind else depth >= every
        if complete and not query.blind:  # also those that codes miss
            words = best["words"]
            best["words"] = Best(np.arange(every), words.at(np.arange(every)), words.outside)
        return Candidates.of(query.fusion, best, complete)

    def _by_text(self, depth: int) -> Iterator[tuple[Source, Best]]:
        """Documents with rare words and with the surest tags."""
        tags = self._revision.tags.best(self._query.concepts, depth)
        best: Mapping[Source, Best] = {
            "words": self._words[0].best(), "generated_words": self._words[1].best(), "tag": tags,
        }  # fmt: skip
        for source, documents in best.items():
            yield source, self._allowed.inside(documents)

    def _by_captions(self, depth: int) -> Best:
        """The images of the best captions; their language may add something to the score."""
        offset = max([0.0, *self._query.caption_offsets.values()])
        if self._captions is None:  # a vector of zeros
            return Best(_NOTHING, np.empty(0), offset)
        captions = self._captions.best(depth * _CAPTIONS_PER_IMAGE)
        slots = self._revision.caption_images.of(captions.keys)
        # Captions that were not found score less than those that were, but for what codes miss.
        return Best(
            slots[slots >= 0], captions.most[slots >= 0] + offset, captions.outside + offset
        )

    def _by_image(self, depth: int, others: Sequence[Slots]) -> Best:
        """The best images, and what those that other sources found score."""
        if self._images is None:  # a vector of zeros
            return Best(_NOTHING, np.empty(0), 0.0)
        images = self._images.best(depth)
        slots = distinct([images.keys, *others])
        return Best(slots, self._images.of(slots), images.outside)

    @cached_property
    def _words(self) -> tuple[WordMatches, WordMatches]:
        return self._revision.words.match(self._query.words, self._documents)

    @cached_property
    def _images(self) -> ComparedRows | FoundRows | None:
        query, few = self._query, self._allowed.few
        rows, search = self._revision.images.rows, self._revision.images.search
        if query.image is None or query.blind:
            return None
        vector, constant = query.image_bound()
        if few is None and not isinstance(search, ExactSearch):
            # The bound finds them, but it is loose for images that show nothing of what a query
            # names, as nearly all of a million do: by their bounds it would settle nothing.
            return FoundRows(search, vector, partial(most_image_scores, query, rows), len(rows))
        slots, most = _compared(search, vector, rows, few)
        return ComparedRows(slots, most + constant, partial(most_image_scores, query, rows))

    @cached_property
    def _captions(self) -> ComparedRows | FoundRows | None:
        query, few = self._query.caption, self._allowed.few
        rows, search = self._revision.captions.rows, self._revision.captions.search
        if query is None or self._query.blind:
            return None
        if few is None and not isinstance(search, ExactSearch):
            return FoundRows(search, query, partial(_most, query, rows), len(rows))
        captions = None if few is None else self._captions_of(few)
        slots, most = _compared(search, query, rows, captions)
        return ComparedRows(slots, most, partial(_most, query, rows))

    def _captions_of(self, images: Slots) -> Slots:
        """The captions of images."""
        sql = (
            "SELECT c.slot FROM images i CROSS JOIN captions c ON c.image_id = i.id "
            "WHERE c.slot IS NOT NULL AND "
        )
        rows = self._catalog.rows(sql + within("i.slot", images.tolist()))
        return np.sort(np.array([slot for (slot,) in rows], np.int64))

    def _score(self, slots: Slots) -> list[Ranked[DocumentRow]]:
        """Candidates that pass the filters, by their exact evidence."""
        query, revision = self._query, self._revision
        slots = self._allowed.among(self._catalog, slots)
        rows = revision.rows(slots.tolist())
        chosen = [row.slot for row in rows]
        values: dict[str, Floats] = {
            "words": self._words[0].coverage(chosen),
            "generated_words": self._words[1].coverage(chosen),
            "tag": np.array([self._tag_score(row) for row in rows], float),
        }
        captions: dict[int, int] = {}
        if query.image is not None:
            values["image"] = image_scores(query, revision.images.rows, np.array(chosen, np.int64))
        if query.caption is not None:
            values |= self._caption_scores(query.caption, rows, captions)
        evidence = Evidence.of(len(rows), **values)
        ids = [row.image_id for row in rows]
        return Scored.of(query.fusion, ids, rows, evidence, captions).ranked(query.min_score)

    def _tag_score(self, row: DocumentRow) -> float:
        tags = {concept: row.tags[concept] for concept in row.tags if concept in self._concepts}
        return tag_score(self._query.concepts, tags) if tags else 0.0

    @cached_property
    def _concepts(self) -> frozenset[str]:
        return frozenset[str]().union(*self._query.concepts)

    def _caption_scores(
        self, query: Vectors, rows: Sequence[DocumentRow], best: dict[int, int]
    ) -> dict[str, Floats]:
        """The best scores by who wrote the caption; `best` gets the caption of each row."""
        captions = [(at, caption) for at, row in enumerate(rows) for caption in row.captions]
        slots = np.array([caption.slot for _, caption in captions], np.int64)
        scores = exact_scores(query, self._revision.captions.rows, slots).tolist()
        values = {name: np.full(len(rows), np.nan) for name in ("caption", "generated")}
        reached = [-np.inf] * len(rows)
        for score, (at, caption) in zip(scores, captions, strict=True):
            score += self._query.caption_offsets.get(caption.language, 0.0)
            written = values["generated" if caption.generated else "caption"]
            written[at] = np.fmax(written[at], score)
            if score > reached[at]:
                reached[at], best[at] = score, caption.slot
        return values


def _most(vector: Vectors, rows: Rows, slots: Slots) -> Floats:
    return most_products(vector[None], rows, slots)[:, 0].astype(np.float64)


def _compared(
    search: Nearest, vector: Vectors, rows: Rows, few: Slots | None
) -> tuple[Slots, Floats]:
    """All rows or some, and the most that their inner products with a vector can be."""
    if few is not None:
        return few, _most(vector, rows, few)
    assert isinstance(search, ExactSearch)
    return np.arange(len(rows)), search.most(vector).astype(np.float64)
