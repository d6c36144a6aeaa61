"""The embedded backend: candidates from vector files and words, documents from SQLite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from capsearch.engine import settling
from capsearch.engine.evidence import Evidence, Floats, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import GENERATED, Caption, Document, Facets, Filters, Vectors
from capsearch.engine.settling import Ranked, rank, settle
from capsearch.indexer.embedded import facets
from capsearch.indexer.embedded.arrays import Slots, VectorFileMissing
from capsearch.indexer.embedded.candidates import Matches, OpenArrays, gather, within
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.facets import MIN_INTERVAL_S, Counted
from capsearch.indexer.embedded.nearest import exact_scores
from capsearch.indexer.embedded.words import with_phrases

MIN_DEPTH = 400  # candidates by each source; with codes, enough for recall@10 of .99 and more
_STALE_S = 60.0  # a count of a writer that is older and not current is made again
Result = TypeVar("Result")
_HAS_FILE = "EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"
_IMAGES = f"SELECT id, slot, {{}} FROM images i WHERE {{}} AND {_HAS_FILE}"
_CAPTIONS = (
    "SELECT c.slot, i.slot, c.text, c.language, c.source, {} FROM captions c "
    "JOIN images i ON i.id = c.image_id WHERE c.slot IS NOT NULL AND {} "
    f"ORDER BY c.source GLOB '{GENERATED}*', c.id"  # among equals, people's and older ones
)


@dataclass(frozen=True, slots=True)
class _Scored:
    """Candidates that have a file: their evidence, ids, slots, and best captions by row."""

    evidence: Evidence
    ids: Sequence[str]
    slots: Sequence[int]
    captions: Mapping[int, Caption]


@dataclass(frozen=True, slots=True)
class _Search:
    """One search inside one snapshot."""

    catalog: SqliteCatalog
    arrays: OpenArrays
    query: EncodedQuery
    matches: Matches
    allowed: Slots | None  # slots of documents that pass the filters, ascending; None for all

    def ranked(self, stop: int) -> list[Ranked[int]]:
        """At least the first `stop` of the ranking, or all of it; rows are slots."""
        return settle(self.query, stop, MIN_DEPTH, self._gather)

    def _gather(self, depth: int) -> settling.Pool[int]:
        pool = gather(self.catalog, self.arrays, self.query, self.matches, self.allowed, depth)
        scored = self.scored(pool.slots)
        ranked = rank(self.query, scored.evidence, scored.ids, scored.slots)
        return settling.Pool(
            ranked, -np.inf if pool.complete else self.query.fusion.bound(pool.highest)
        )

    def scored(self, slots: Slots) -> _Scored:
        """The exact evidence of candidates, in the order of their ids."""
        number = "number" if self.catalog.has_words() else "NULL"
        sql = _IMAGES.format(number, within("i.slot", slots.tolist()))
        found = sorted(self.catalog.rows(sql))
        chosen = [slot for _, slot, _ in found]
        matches = {"words": self.matches.words, "generated_words": self.matches.generated}
        values: dict[str, Floats] = {
            source: np.array([one.coverage(number) for _, _, number in found], float)
            for source, one in matches.items()
        }
        values["tag"] = self.matches.tags.scores(chosen)
        best: dict[int, Caption] = {}
        if self.query.image is not None:
            rows = np.array(chosen, np.int64)
            values["image"] = exact_scores(self.query.image, self.arrays.images, rows)
        if self.query.caption is not None:
            values |= self._captions(self.query.caption, chosen, best)
        return _Scored(
            Evidence.of(len(found), **values), [image_id for image_id, _, _ in found], chosen, best
        )

    def _captions(
        self, query: Vectors, images: Sequence[int], best: dict[int, Caption]
    ) -> dict[str, Floats]:
        """The best scores by who wrote the caption; `best` gets the caption of each row."""
        row_of = {slot: row for row, slot in enumerate(images)}
        sql = _CAPTIONS.format(self.catalog.confidence(), within("i.slot", images))
        found = self.catalog.rows(sql)
        slots = np.array([row[0] for row in found], np.int64)
        scores = exact_scores(query, self.arrays.captions, slots).tolist()
        values = {name: np.full(len(images), np.nan) for name in ("caption", "generated")}
        highest, offsets = np.full(len(images), -np.inf), self.query.caption_offsets
        for score, (_, slot, *texts) in zip(scores, found, strict=True):
            row, caption = row_of[slot], Caption(*texts)
            score += offsets.get(caption.language, 0.0)
            name = "generated" if caption.generated else "caption"
            values[name][row] = np.fmax(values[name][row], score)
            if score > highest[row]:
                highest[row], best[row] = score, caption
        return values

    def page(self, ranked: Sequence[Ranked[int]]) -> tuple[Found, ...]:
        """Documents with the reasons for their scores."""
        documents = self.catalog.documents([one.image_id for one in ranked])
        scored = self.scored(np.array([one.row for one in ranked], np.int64))
        row_of = {image_id: row for row, image_id in enumerate(scored.ids)}
        fusion, evidence = self.query.fusion, scored.evidence
        parts = fusion.log_odds(evidence)
        return tuple(
            Found(
                documents[one.image_id],
                one.score,
                contributions(evidence, parts, row, fusion.sources, scored.captions.get(row)),
            )
            for one in ranked
            for row in [row_of[one.image_id]]
        )


class EmbeddedBackend:
    """engine.protocols.Backend over an index folder. Threads may share one object."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self.catalog = catalog
        self._arrays: OpenArrays | None = None
        self._opening = threading.Lock()
        self._facets: Counted | None = None
        self._count: tuple[int, int] | None = None

    def __len__(self) -> int:
        revision = self.catalog.revision()
        known = self._count
        if known is None or known[0] != revision:
            known = self._count = (revision, self.catalog.searchable_count())
        return known[1]

    def captioned(self) -> bool:
        """Whether any caption has a vector."""
        return bool(self.catalog.rows("SELECT 1 FROM captions WHERE slot IS NOT NULL LIMIT 1"))

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """The documents ranked offset + 1 to offset + limit; see engine.protocols.

        Candidates of every source are scored from their rows (Fagin's threshold algorithm): no
        document outside the pool can exceed the bound, so once enough candidates do, the page
        is settled. Where codes find the candidates this holds but for what codes miss.
        """
        if query.empty:
            return ()

        def page() -> tuple[Found, ...]:
            allowed = self._allowed(query, filters)
            matches = Matches.of(self.catalog, query, len(self))
            search = _Search(self.catalog, self._open(), query, matches, allowed)
            ranked = search.ranked(offset + limit)
            if ranked and ranked[0].score < query.min_best:
                return ()
            return search.page(ranked[offset : offset + limit])

        return self._in_snapshot(page)

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; unknown ids are left out."""
        return self.catalog.documents(ids)

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector (D,) of a document, or None."""

        def read() -> Vectors | None:
            sql = f"SELECT slot FROM images i WHERE id = ? AND slot IS NOT NULL AND {_HAS_FILE}"
            rows = self.catalog.rows(sql, (image_id,))
            return np.array(self._open().images[rows[0][0]], np.float32) if rows else None

        return self._in_snapshot(read)

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """By the date they were taken, latest first, undated last; ties by id."""
        with self.catalog.snapshot():
            ids = self.catalog.newest(filters, limit, offset)
            found = self.catalog.documents(ids)
        return tuple(found[one] for one in ids)

    def facets(self) -> Facets:
        """What the documents can be filtered by, as a writer last counted it.

        A count that is being made again by a running writer may be some seconds old. Without a
        writer's count, it is made here, not more than once in some seconds.
        """
        revision, known, now = self.catalog.revision(), self._facets, time.time()
        if known is not None and (known.revision == revision or now - known.at < MIN_INTERVAL_S):
            return known.facets
        counted = facets.stored(self.catalog)
        if counted is None or (counted.revision != revision and now - counted.at > _STALE_S):
            counted = Counted(facets.facets(self.catalog), revision, time.time())
        self._facets = counted
        return counted.facets

    def _in_snapshot(self, read: Callable[[], Result]) -> Result:
        """What `read` finds in one state of the catalog.

        Compaction may delete the vector files of a state between its reading and their opening;
        then there is a newer state that names others. If there is none, a file is really missing.
        """
        files = None
        while True:
            try:
                with self.catalog.snapshot():
                    return read()
            except VectorFileMissing:
                before, files = (
                    files,
                    (self.catalog.array("vectors"), self.catalog.array("captions")),
                )
                if files == before:
                    raise

    def _open(self) -> OpenArrays:
        """The vector files as the snapshot has them; call inside one."""
        with self._opening:
            self._arrays = OpenArrays.of(self.catalog, self._arrays)
            return self._arrays

    def _allowed(self, query: EncodedQuery, filters: Filters) -> Slots | None:
        """The slots of documents that pass, ascending; None for all."""
        if not filters and not query.phrases:
            return None
        if query.phrases and not self.catalog.has_words():
            return np.empty(0, np.int64)
        conditions = [with_phrases(self.catalog, query.phrases)] if query.phrases else []
        rows = self.catalog.select(filters, "slot", ("slot IS NOT NULL", ()), *conditions)
        return np.sort(np.array([row[0] for row in rows], np.int64))
