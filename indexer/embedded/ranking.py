"""One search: candidates by every source of evidence, scored from their rows, step by step.

No document outside the candidates can exceed the bound (engine.settling), and no candidate what it
can score at most. Where codes find the candidates both hold but for what codes miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.engine import settling
from capsearch.engine.evidence import Evidence, Floats, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import GENERATED, Caption, Vectors
from capsearch.engine.settling import Ranked, rank, settle
from capsearch.indexer.embedded.arrays import Slots
from capsearch.indexer.embedded.candidates import HAS_FILE, Allowed, Matches, OpenArrays
from capsearch.indexer.embedded.catalog import SqliteCatalog, within
from capsearch.indexer.embedded.nearest import exact_scores, image_scores
from capsearch.indexer.embedded.pool import Candidates

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
    "SELECT slot, text, language, source, {} FROM captions c WHERE {} "
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
        sql = _CAPTION_TEXTS.format(self.catalog.confidence(), within("slot", list(at)))
        best: dict[int, tuple[float, Caption]] = {}
        for slot, *texts in self.catalog.rows(sql):
            row, score = at[slot]
            if row not in best or score > best[row][0]:
                best[row] = score, Caption(*texts)
        return {row: caption for row, (_, caption) in best.items()}
