"""One search: candidates by every source of evidence, scored from their rows, step by step.

Fagin's threshold algorithm: no document outside the candidates can exceed the bound, so once enough
candidates do, the page is settled. Where codes find the candidates this holds but for what codes
miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.evidence import Evidence, Floats, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import GENERATED, Caption, Vectors
from capsearch.indexer.embedded.arrays import Slots
from capsearch.indexer.embedded.candidates import HAS_FILE, Allowed, OpenArrays, gather, within
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.nearest import exact_scores
from capsearch.indexer.embedded.words import WordMatches

MIN_DEPTH = 200  # images, and twice as many captions; docs/scale.md has their recall
_DEEPER = 4  # times as many, where these did not settle the page
_OVERSAMPLING = 4  # candidates for each hit that they may settle
_IMAGES = f"SELECT id, slot, {{}} FROM images i WHERE {{}} AND {HAS_FILE} AND {{}}"
_IS_GENERATED = f"c.source GLOB '{GENERATED}*'"
_CAPTIONS = (
    f"SELECT c.slot, i.slot, c.language, {_IS_GENERATED} FROM images i "
    "CROSS JOIN captions c ON c.image_id = i.id WHERE c.slot IS NOT NULL AND {}"
)
_CAPTION_TEXTS = (
    "SELECT slot, text, language, source FROM captions c WHERE {} "
    f"ORDER BY {_IS_GENERATED}, id"  # among equals, people's and older ones
)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its score."""

    score: float
    image_id: str
    slot: int


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
    matches: WordMatches
    allowed: Allowed

    def ranked(self, stop: int) -> list[Ranked]:
        """At least the first `stop` of the ranking, or all of it.

        Each step settles the candidates that no document outside can exceed, and the next one
        appends to them. Codes may miss a document at first and find it deeper: it then comes
        after what is settled, so that all pages are cut from one and the same ranking.
        """
        settled: dict[str, Ranked] = {}
        depth = MIN_DEPTH
        while True:
            pool = gather(self.catalog, self.arrays, self.query, self.matches, self.allowed, depth)
            ranked = self._rank(self.scored(pool.slots))
            bound = -np.inf if pool.complete else self.query.fusion.bound(pool.highest)
            last = bound == -np.inf or bound < self.query.min_score
            if not last:
                above = takewhile(lambda one: one.score > bound, ranked)  # noqa: B023
                ranked = list(above)[: depth // _OVERSAMPLING]
            for one in ranked:
                settled.setdefault(one.image_id, one)
            if last or len(settled) >= stop:
                return list(settled.values())
            depth *= _DEEPER

    def _rank(self, scored: _Scored) -> list[Ranked]:
        """Candidates at or above the cut-off, best first, ties by id."""
        scores = self.query.fusion.scores(scored.evidence)
        keep = np.flatnonzero((scores > -np.inf) & (scores >= self.query.min_score))
        ranked = [
            Ranked(float(scores[row]), scored.ids[row], scored.slots[row]) for row in keep.tolist()
        ]
        return sorted(ranked, key=lambda one: (-one.score, one.image_id))

    def scored(self, slots: Slots) -> _Scored:
        """The exact evidence of candidates that pass the filters, in the order of their ids."""
        number = "number" if self.catalog.has_words() else "NULL"
        condition, operands = self.allowed.condition
        sql = _IMAGES.format(number, within("i.slot", slots.tolist()), condition)
        found = sorted(self.catalog.rows(sql, operands))
        chosen = [slot for _, slot, _ in found]
        values: dict[str, Floats] = {
            "words": np.array([self.matches.coverage(number) for _, _, number in found], float)
        }
        captions = None
        if self.query.image is not None:
            rows = np.array(chosen, np.int64)
            values["image"] = exact_scores(self.query.image, self.arrays.images, rows)
        if self.query.caption is not None:
            captions = self._captions(self.query.caption, chosen)
            for name, written in (
                ("caption", ~captions.generated),
                ("generated", captions.generated),
            ):
                values[name] = captions.best(len(chosen), written)
        ids = [image_id for image_id, _, _ in found]
        return _Scored(Evidence.of(len(found), **values), ids, chosen, captions)

    def _captions(self, query: Vectors, images: Sequence[int]) -> _Captions:
        """The captions of images, which are sorted by slot."""
        found = self.catalog.rows(_CAPTIONS.format(within("i.slot", images)))
        row_of = {slot: row for row, slot in enumerate(images)}
        slots = np.array([row[0] for row in found], np.int64)
        offsets = self.query.caption_offsets
        scores = exact_scores(query, self.arrays.captions, slots)
        scores += [offsets.get(language, 0.0) for _, _, language, _ in found]
        return _Captions(
            slots,
            np.array([row_of[row[1]] for row in found], np.int64),
            scores,
            np.array([row[3] for row in found], bool),
        )

    def page(self, ranked: Sequence[Ranked]) -> tuple[Found, ...]:
        """Documents with the reasons for their scores."""
        documents = self.catalog.documents([one.image_id for one in ranked])
        scored = self.scored(np.array([one.slot for one in ranked], np.int64))
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
        found = self.catalog.rows(_CAPTION_TEXTS.format(within("slot", list(at))))
        best: dict[int, tuple[float, Caption]] = {}
        for slot, *texts in found:
            row, score = at[slot]
            if row not in best or score > best[row][0]:
                best[row] = score, Caption(*texts)
        return {row: caption for row, (_, caption) in best.items()}
