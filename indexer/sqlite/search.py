"""Candidates of a search: the best rows by each source of evidence, more of them step by step.

One search: candidates by every source of evidence, scored from their rows, step by step.

No document outside the candidates can exceed the bound (engine.bounds), and no candidate what it
can score at most. Where codes find the candidates both hold but for what codes miss.

What a search starts from: open vector files, the documents that pass, matched words and tags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.engine import bounds as settling
from capsearch.engine.bounds import DEEPER, Ranked, rank, settle
from capsearch.engine.evidence import ABSENT, Evidence, Floats, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import GENERATED, Caption, Filters, Source, Vectors
from capsearch.indexer.sqlite import nearest
from capsearch.indexer.sqlite.arrays import Rows, Slots, VectorFile
from capsearch.indexer.sqlite.catalog import SqliteCatalog, within
from capsearch.indexer.sqlite.matches import (
    GENERATED_KIND,
    PEOPLES,
    CaptionImages,
    TagMatches,
    WordCounts,
    WordMatches,
    match,
    occurrences,
    with_phrases,
)
from capsearch.indexer.sqlite.nearest import (
    ExactSearch,
    Nearest,
    Threads,
    best_of,
    exact_scores,
    image_scores,
)

HAS_FILE = "EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"
# Documents that pass a filter: these alone are compared, if they are not many of all.
_FEW, _FEW_SHARE = 20_000, 1 / 20
_SCORED = 2_000  # of these, all are scored


@dataclass(frozen=True, slots=True)
class OpenArrays:
    """The vector files of one state of the catalog, open for search."""

    files: tuple[VectorFile, VectorFile]
    images: Rows
    captions: Rows
    nearest_images: Nearest
    nearest_captions: Nearest
    caption_images: CaptionImages

    @classmethod
    def of(cls, catalog: SqliteCatalog, before: OpenArrays | None = None) -> OpenArrays:
        """Opens them, or what has changed since `before`; call inside a snapshot."""
        files = images, captions = catalog.array("vectors"), catalog.array("captions")
        if before is not None and before.files == files:
            return before
        opened = [None, None] if before is None else before._still_valid(files)
        return cls(
            files,
            images.view(),
            captions.view(),
            nearest.open_search(images, opened[0]),
            nearest.open_search(captions, opened[1]),
            CaptionImages.open(captions, images),
        )

    def _still_valid(self, files: Sequence[VectorFile]) -> list[Nearest | None]:
        """Searches over files that have only grown."""
        searches = (self.nearest_images, self.nearest_captions)
        return [
            search if (old.generation, old.width) == (new.generation, new.width) else None
            for old, new, search in zip(self.files, files, searches, strict=True)
        ]


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
        condition, values = self.condition
        sql = f"SELECT slot FROM images i WHERE slot IS NOT NULL AND {condition}"
        rows = catalog.rows(sql, values)
        return Allowed(few=np.sort(np.array([row[0] for row in rows], np.int64)))


class Matches:
    """Where the words of a query occur, in what people and what models wrote, and its tags.

    Everything is looked up where it is first needed: counting a word takes as long as a scan of the
    codes, which goes on meanwhile.
    """

    def __init__(
        self, catalog: SqliteCatalog, query: EncodedQuery, documents: int, known: WordCounts
    ) -> None:
        self._catalog, self._query = catalog, query
        self._documents, self._known = documents, known
        self.tags = TagMatches(catalog, query.concepts)

    @cached_property
    def words(self) -> WordMatches:
        """In what people wrote."""
        return self._match(PEOPLES)

    @cached_property
    def generated(self) -> WordMatches:
        """In what models wrote."""
        return self._match(GENERATED_KIND)

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Of the documents with rare words, by slot."""
        numbers = sorted({*self.words.weights, *self.generated.weights})
        sql = "SELECT slot, number FROM images WHERE slot IS NOT NULL AND "
        return dict(self._catalog.rows(sql + within("number", numbers)) if numbers else ())

    def _match(self, table: str) -> WordMatches:
        return match(self._catalog, self._query.words, self._documents, self._known, table)

    def worded(self) -> Slots:
        """The documents with rare words."""
        return np.array(sorted(self.numbers), np.int64)

    def coverage(self, words: WordMatches, slots: Iterable[int]) -> Floats:
        """(n,) the share of the query's words that each document has."""
        return np.array([words.coverage(self.numbers.get(slot)) for slot in slots], float)


_CAPTIONS_PER_IMAGE = 2  # candidates by captions for each by its image: several belong to one
_DEEP = 25_600  # candidates; if less than a page of these pass a filter, few do
_OVERSAMPLING = 1.5  # rows found for each that is needed: codes miss some of the last
_NONE, _UNSCORED = np.empty(0, np.int64), np.empty(0)
_threads = Threads(4)


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates by slot, and the most that documents can score by each source.

    `most` is what candidates can have, as far as it is known without the catalog; None if nothing
    is. `highest` is what documents outside can have: NaN for a source that none outside has, and
    empty if there is none.
    """

    slots: Slots
    highest: Mapping[Source, float]
    most: Evidence | None = None

    @property
    def complete(self) -> bool:
        """There is no document outside."""
        return not self.highest


@dataclass(slots=True)
class BestRows:
    """The rows of a file, or few of them, by their score for one query, the best first.

    `score` is what `query` finds them by, or where codes find them, which miss some anyway, it may
    be what `query` only bounds.
    """

    query: Vectors
    rows: Rows
    nearest: Nearest
    few: Slots | None
    score: Callable[[Slots], Floats]
    _slots: Slots = field(default_factory=_NONE.copy)
    _scores: Floats = field(default_factory=_UNSCORED.copy)
    _next: Slots | None = None  # what the next step adds: not scored yet
    _reached: int = 0  # with these

    def find(self, depth: int) -> BestRows:
        """Finds `depth` rows."""
        more = int(_OVERSAMPLING * depth)
        if len(self._slots) >= min(more, self._every):
            return self
        if self.few is not None:
            self._put(best_of(self.query, self.rows, self.few, more))
        elif self._next is not None and more <= self._reached:
            self._put(self._next, self._slots, self._scores)
            self._next = None
        else:
            self._search(more)
        return self

    def _search(self, depth: int) -> None:
        """Finds so many rows, and at first those of the next step too: no second scan for them."""
        first = not len(self._slots)
        depths = [depth, depth * DEEPER] if first else [depth]
        found, *others = self.nearest.steps(self.query, depths)
        self._put(found)
        if others:
            self._next, self._reached = others[0], depths[1]

    def _put(self, found: Slots, slots: Slots = _NONE, scores: Floats = _UNSCORED) -> None:
        """What was found takes its place among scored slots."""
        slots = np.append(slots, found)
        scores = np.append(scores, self.score(found))
        order = np.lexsort((slots, -scores))
        self._slots, self._scores = slots[order], scores[order]

    def first(self, depth: int) -> tuple[Slots, Floats]:
        """The best `depth` that were found, and their scores."""
        return self._slots[:depth], self._scores[:depth]

    def outside(self, depth: int) -> float:
        """What no row but the first `depth` exceeds; NaN if there is no other."""
        inside = self._scores[:depth]
        if len(inside) >= self._every:
            return np.nan
        return float(inside[-1]) if len(inside) else np.inf

    @property
    def _every(self) -> int:
        return len(self.rows) if self.few is None else len(self.few)


@dataclass(slots=True)
class Candidates:
    """The candidates of one search."""

    catalog: SqliteCatalog
    arrays: OpenArrays
    query: EncodedQuery
    matches: Matches
    allowed: Allowed
    _images: BestRows | None = None
    _captions: BestRows | None = None

    def pool(self, depth: int) -> Pool:
        """The best `depth` rows by every source of the fusion, and documents with rare words."""
        if self.query.blind:
            return self._blind(depth)
        if depth > _DEEP and self.allowed.few is None and not self.allowed.all:
            self.allowed = self.allowed.looked_up(self.catalog)
            self._images = self._captions = None
        if (listed := self.allowed.listed(depth)) is not None:
            return Pool(listed, {})
        if depth >= len(self.arrays.images):
            return Pool(np.arange(len(self.arrays.images)), {})
        by_image, by_caption = self._find(depth)
        try:
            known, surest = self._known(depth)
        finally:  # nothing goes on after a search that failed
            wait([one for one in (by_image, by_caption) if one is not None])
        highest: dict[Source, float] = {**ABSENT, "tag": surest}
        parts = [slots for slots, _ in known.values()]
        if by_image is not None:
            found = by_image.result()
            parts.append(found.first(depth)[0])
            highest["image"] = found.outside(depth)
        if by_caption is not None:
            found, offset = by_caption.result(), _most_offset(self.query)
            captioned, scores = self._captioned(*found.first(depth * _CAPTIONS_PER_IMAGE))
            parts.append(captioned)
            # Captions that were not found score less than those that were, but for what codes miss.
            known["caption"] = known["generated"] = captioned, scores + offset
            least = found.outside(depth * _CAPTIONS_PER_IMAGE)
            highest["caption"] = highest["generated"] = least + offset
            if not self.arrays.caption_images.by_people(self.catalog):
                highest["caption"] = np.nan
                del known["caption"]
        slots = np.unique(np.concatenate(parts))
        return Pool(slots, highest, self._most(slots, highest, known))

    def _known(self, depth: int) -> tuple[dict[Source, tuple[Slots, Floats]], float]:
        """Documents with rare words and with the surest tags, and the most that each has by these
        sources; the most that any other has by its tags."""
        worded, (tagged, shares, surest) = self.matches.worded(), self.matches.tags.top(depth)
        found: dict[Source, tuple[Slots, Floats]] = {"tag": (tagged, shares)}
        found["words"] = worded, self.matches.coverage(self.matches.words, worded)
        found["generated_words"] = worded, self.matches.coverage(self.matches.generated, worded)
        if (few := self.allowed.few) is not None:
            inside = {source: np.isin(slots, few) for source, (slots, _) in found.items()}
            found = {
                source: (slots[inside[source]], most[inside[source]])
                for source, (slots, most) in found.items()
            }
        return found, surest

    def _most(
        self,
        slots: Slots,
        highest: Mapping[Source, float],
        known: Mapping[Source, tuple[Slots, Floats]],
    ) -> Evidence:
        """What candidates can have: what is `known` of those that a source found, or `highest`."""
        most: dict[str, Floats] = {one: np.full(len(slots), at) for one, at in highest.items()}
        for source, (found, values) in known.items():
            at = np.searchsorted(slots, found)
            most[source][at] = -np.inf
            np.maximum.at(most[source], at, values)  # an image may be found by several captions
        if self.query.image is not None:
            most["image"] = image_scores(self.query, self.arrays.images, slots)
        return Evidence.of(len(slots), **most)

    def _find(self, depth: int) -> tuple[Future[BestRows] | None, Future[BestRows] | None]:
        """Images and captions are searched side by side."""
        arrays, query, few = self.arrays, self.query, self.allowed.few
        by_image = by_caption = None
        if query.image is not None:
            if self._images is None:
                self._images = self._by_image(few)
            by_image = _threads.submit(self._images.find, depth)
        if query.caption is not None:
            if self._captions is None:
                captions = None if few is None else self._captions_of(few)
                rows, nearest = arrays.captions, arrays.nearest_captions
                score = partial(exact_scores, query.caption, rows)
                self._captions = BestRows(query.caption, rows, nearest, captions, score)
            by_caption = _threads.submit(self._captions.find, depth * _CAPTIONS_PER_IMAGE)
        return by_image, by_caption

    def _by_image(self, few: Slots | None) -> BestRows:
        """Images by the bound of their scores, which is exact; by the scores where codes find them.

        The bound is loose for images that show nothing of what a query names, as nearly all of a
        million do: it would settle nothing.
        """
        rows, nearest = self.arrays.images, self.arrays.nearest_images
        vector, constant = self.query.image_bound()
        if few is None and not isinstance(nearest, ExactSearch):
            return BestRows(vector, rows, nearest, few, partial(image_scores, self.query, rows))

        def bounds(slots: Slots) -> Floats:
            return exact_scores(vector, rows, slots) + constant

        return BestRows(vector, rows, nearest, few, bounds)

    def _blind(self, depth: int) -> Pool:
        """By words and tags alone: vectors of zeros score every document alike."""
        known, surest = self._known(depth)
        slots = np.unique(np.concatenate([slots for slots, _ in known.values()]))
        if not surest:
            return Pool(slots, {})
        highest: dict[Source, float] = {**ABSENT, "tag": surest}
        if self.query.image is not None:
            highest["image"] = 0.0
        if self.query.caption is not None:
            highest["caption"] = highest["generated"] = _most_offset(self.query)
        return Pool(slots, highest)

    def _captioned(self, captions: Slots, scores: Floats) -> tuple[Slots, Floats]:
        """The image of each caption that has one, and the caption's score."""
        images = self.arrays.caption_images.of(self.catalog, captions)
        return images[images >= 0], scores[images >= 0]

    def _captions_of(self, images: Slots) -> Slots:
        """The captions of images."""
        sql = (
            "SELECT c.slot FROM images i CROSS JOIN captions c ON c.image_id = i.id "
            "WHERE c.slot IS NOT NULL AND "
        )
        return self._slots(sql + within("i.slot", images.tolist()))

    def _slots(self, sql: str) -> Slots:
        return np.array([slot for (slot,) in self.catalog.rows(sql)], np.int64)


def _most_offset(query: EncodedQuery) -> float:
    """What the language of a caption adds to its score, at most."""
    return max([0.0, *query.caption_offsets.values()])


MIN_DEPTH = 600  # images, and twice as many captions; docs/scale.md has their recall
_FIRST_PART = 64  # candidates that are scored first
_IS_GENERATED = f"c.source GLOB '{GENERATED}*'"
_IMAGES = f"SELECT i.id, i.slot FROM images i WHERE {{}} AND {HAS_FILE} AND {{}}"
_WITH_CAPTIONS = (
    f"SELECT i.id, i.slot, c.slot, c.language, {_IS_GENERATED} FROM images i "
    "LEFT JOIN captions c ON c.image_id = i.id AND c.slot IS NOT NULL "
    f"WHERE {{}} AND {HAS_FILE} AND {{}}"
)
_CAPTION_TEXTS = (
    "SELECT slot, text, language, source, confidence FROM captions c WHERE {} "
    f"ORDER BY {_IS_GENERATED}, id"  # among equals, people's and older ones
)


@dataclass(frozen=True, slots=True)
class _Captions:
    """Captions of candidates with vectors: their slots, candidates (by row) and scores."""

    slots: Slots
    rows: NDArray[np.int64]
    scores: Floats
    generated: NDArray[np.bool_]

    def best(self, count: int, chosen: NDArray[np.bool_]) -> Floats:
        """(count,) the highest score of the chosen captions of each candidate, NaN for none."""
        best = np.full(count, -np.inf)
        np.maximum.at(best, self.rows[chosen], self.scores[chosen])
        return np.where(best == -np.inf, np.nan, best)


@dataclass(frozen=True, slots=True)
class _Scored:
    """Candidates that pass the filters: their evidence, ids and slots, and their captions."""

    evidence: Evidence
    ids: Sequence[str]
    slots: Sequence[int]
    captions: _Captions | None


@dataclass(frozen=True, slots=True)
class Search:
    """One search inside one snapshot."""

    catalog: SqliteCatalog
    arrays: OpenArrays
    query: EncodedQuery
    matches: Matches
    allowed: Allowed

    def ranked(self, stop: int) -> list[Ranked[int]]:
        """At least the first `stop` of the ranking, or all of it; rows are slots."""
        candidates = Candidates(self.catalog, self.arrays, self.query, self.matches, self.allowed)
        fusion = self.query.fusion

        def find(depth: int) -> settling.Candidates:
            pool = candidates.pool(depth)
            bounds = None if pool.most is None else fusion.bounds(pool.most)
            outside = -np.inf
            if not pool.complete:
                outside = float(fusion.bounds(Evidence.single(pool.highest))[0])
            return settling.Candidates(pool.slots, bounds, outside)

        gather = settling.InParts[int](find, self._rank, _FIRST_PART)
        return settle(self.query, stop, MIN_DEPTH, gather)

    def _rank(self, slots: Slots) -> list[Ranked[int]]:
        new = self.scored(slots)
        return rank(self.query, new.evidence, new.ids, new.slots)

    def scored(self, slots: Slots) -> _Scored:
        """The exact evidence of candidates that pass the filters, in the order of their ids."""
        condition, operands = self.allowed.condition
        sql = _IMAGES if self.query.caption is None else _WITH_CAPTIONS
        sql = sql.format(within("i.slot", slots.tolist()), condition)
        rows = sorted(self.catalog.rows(sql, operands))
        found: dict[str, int] = {row[0]: row[1] for row in rows}
        chosen = [*found.values()]
        values: dict[str, Floats] = {
            "words": self.matches.coverage(self.matches.words, chosen),
            "generated_words": self.matches.coverage(self.matches.generated, chosen),
            "tag": self.matches.tags.scores([*found]),
        }
        captions = None
        if self.query.image is not None:
            images = np.array(chosen, np.int64)
            values["image"] = image_scores(self.query, self.arrays.images, images)
        if self.query.caption is not None:
            captions = self._captions(self.query.caption, chosen, rows)
            for name, written in (
                ("caption", ~captions.generated),
                ("generated", captions.generated),
            ):
                values[name] = captions.best(len(chosen), written)
        return _Scored(Evidence.of(len(found), **values), [*found], chosen, captions)

    def _captions(
        self, query: Vectors, images: Sequence[int], rows: Sequence[Sequence[Any]]
    ) -> _Captions:
        """The captions in rows of _WITH_CAPTIONS, of such images."""
        row_of = {slot: row for row, slot in enumerate(images)}
        found = [row[1:] for row in rows if row[2] is not None]
        slots = np.array([caption for _, caption, _, _ in found], np.int64)
        offsets = self.query.caption_offsets
        scores = exact_scores(query, self.arrays.captions, slots)
        scores += [offsets.get(language, 0.0) for _, _, language, _ in found]
        return _Captions(
            slots,
            np.array([row_of[image] for image, _, _, _ in found], np.int64),
            scores,
            np.array([generated for _, _, _, generated in found], bool),
        )

    def page(self, ranked: Sequence[Ranked[int]]) -> tuple[Found, ...]:
        """Documents with the reasons for their scores."""
        documents = self.catalog.documents([one.image_id for one in ranked])
        scored = self.scored(np.array([one.row for one in ranked], np.int64))
        row_of = {image_id: row for row, image_id in enumerate(scored.ids)}
        fusion, evidence = self.query.fusion, scored.evidence
        best, parts = self._best_captions(scored), fusion.log_odds(evidence)
        return tuple(
            Found(
                documents[one.image_id],
                one.score,
                contributions(evidence, parts, row, fusion.sources, best.get(row)),
            )
            for one in ranked
            for row in [row_of[one.image_id]]
        )

    def _best_captions(self, scored: _Scored) -> Mapping[int, Caption]:
        """The caption of each row that scores highest."""
        if scored.captions is None:
            return {}
        rows, scores = scored.captions.rows.tolist(), scored.captions.scores.tolist()
        at = dict(zip(scored.captions.slots.tolist(), zip(rows, scores, strict=True), strict=True))
        sql = _CAPTION_TEXTS.format(within("slot", list(at)))
        best: dict[int, tuple[float, Caption]] = {}
        for slot, *texts in self.catalog.rows(sql):
            row, score = at[slot]
            if row not in best or score > best[row][0]:
                best[row] = score, Caption(*texts)
        return {row: caption for row, (_, caption) in best.items()}
