"""Candidates of a search: the best rows by each source of evidence, more of them step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from capsearch.engine.evidence import ABSENT, Evidence, Floats
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Source, Vectors
from capsearch.engine.settling import DEEPER
from capsearch.indexer.embedded.arrays import Rows, Slots
from capsearch.indexer.embedded.candidates import Allowed, Matches, OpenArrays
from capsearch.indexer.embedded.catalog import SqliteCatalog, within
from capsearch.indexer.embedded.nearest import (
    ExactSearch,
    Nearest,
    best_of,
    exact_scores,
    image_scores,
)
from capsearch.indexer.embedded.threads import Threads

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
