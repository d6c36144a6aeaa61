"""Vector search over a vector file: FAISS finds candidates, scores from the rows rank them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Match, Vectors
from capsearch.indexer.embedded.arrays import Rows, Slots, blocks
from capsearch.indexer.embedded.nearest import Mask, Nearest, build

_MIN_DEPTH = 64
_ROUNDING = 1e-5  # FAISS sums in another order; scores closer than this may swap


class Searcher(Protocol):
    """Finds the rows with the highest inner product with a query."""

    def nearest(self, query: Vectors, depth: int, mask: Mask | None) -> Nearest:
        """About `depth` of the best rows where `mask` is True, and the lowest score among them."""
        ...


class FaissIndex:
    """engine.protocols.VectorIndex over the rows of a vector file.

    Entry n is row `slots[n]`, belongs to image `owners[n]` and has the number `items[n]`. Rows
    without an entry are unused and never found. FAISS only selects candidates; their scores are
    computed by `exact_scores`, so that equal rows tie exactly and are ordered by image id. Up to
    nearest.FLAT_LIMIT rows the result is exact; above that, candidates come from an HNSW graph,
    which may miss images.
    """

    def __init__(
        self,
        rows: Rows,
        slots: Slots,
        owners: Sequence[str],
        items: Slots,
        searcher: Searcher | None = None,
    ) -> None:
        self._rows, self._slots, self._items = rows, slots, items
        self._ids = sorted(set(owners))
        ranks = {image_id: rank for rank, image_id in enumerate(self._ids)}
        self._ranks = np.array([ranks[owner] for owner in owners], np.int64)  # into self._ids
        self._entry_of_slot = np.full(len(rows), -1, np.int64)
        self._entry_of_slot[slots] = np.arange(len(slots))
        self._given = searcher

    def __len__(self) -> int:
        return len(self._slots)

    def search(
        self, query: Vectors, count: int, allowed: Collection[str] | None = None
    ) -> tuple[Match, ...]:
        """The `count` best images, each once with its best item; ties by image id.

        With an exact searcher a smaller `count` gives the beginning of the same list. With a
        graph that holds only while both counts lead to the same efSearch.
        """
        mask = self._mask(allowed)
        total = len(self._rows) if mask is None else int(mask.sum())
        depth = min(max(2 * count, _MIN_DEPTH), total)
        while depth > 0:
            found = self._searcher.nearest(query, depth, mask)
            matches = self._best(query, self._entry_of_slot[found.slots])
            # Images that FAISS did not return score at most `lowest` (if the search was exact).
            threshold = found.lowest + _ROUNDING
            complete = len(matches) >= count and matches[count - 1].score > threshold
            if depth >= total or complete:
                return matches[:count]
            depth = min(4 * depth, total)
        return ()

    def scores(self, query: Vectors, image_ids: Sequence[str]) -> Mapping[str, Match]:
        """Each given image's best match by `exact_scores`; images without a vector are left out."""
        entries = [entry for owner in set(image_ids) for entry in self._entries_of.get(owner, ())]
        matches = self._best(query, np.array(entries, np.int64))
        return {match.image_id: match for match in matches}

    def vector(self, image_id: str) -> Vectors | None:
        """The vector of the lowest-numbered item an image owns, or None."""
        entries = self._entries_of.get(image_id)
        if not entries:
            return None
        first = min(entries, key=lambda entry: int(self._items[entry]))
        return np.asarray(self._rows[self._slots[first]], np.float32)

    @cached_property
    def _searcher(self) -> Searcher:
        return self._given or build(self._rows)

    @cached_property
    def _entries_of(self) -> dict[str, list[int]]:
        entries: dict[str, list[int]] = {}
        for entry, rank in enumerate(self._ranks):
            entries.setdefault(self._ids[rank], []).append(entry)
        return entries

    def _mask(self, allowed: Collection[str] | None) -> Mask | None:
        """(rows,) True where a row may be returned; None when all rows may."""
        if allowed is None and len(self._slots) == len(self._rows):
            return None
        mask: Mask = np.zeros(len(self._rows), bool)
        if allowed is None:
            mask[self._slots] = True
        else:
            wanted = np.array([image_id in allowed for image_id in self._ids], bool)
            mask[self._slots[wanted[self._ranks]]] = True
        return mask

    def _best(self, query: Vectors, entries: Slots) -> tuple[Match, ...]:
        """The best item of every image among `entries`, best first."""
        scores = exact_scores(query, self._rows, self._slots[entries])
        ranks, items = self._ranks[entries], self._items[entries]
        order = np.lexsort((items, ranks, -scores))
        _, firsts = np.unique(ranks[order], return_index=True)
        chosen = order[np.sort(firsts)]
        return tuple(
            Match(self._ids[rank], float(score), int(item))
            for rank, score, item in zip(ranks[chosen], scores[chosen], items[chosen], strict=True)
        )


def exact_scores(query: Vectors, rows: Rows, slots: Slots) -> NDArray[np.float32]:
    """(n,) inner products of `query` with the rows at `slots`, the same for a row in any batch.

    A matrix product may sum a row in another order depending on the rows around it. Here each
    row is multiplied and summed by itself in float64, then rounded to float32.
    """
    wide = query.astype(np.float64)
    parts = [(block.astype(np.float64) * wide).sum(axis=1) for block in blocks(rows, slots)]
    return np.concatenate([np.empty(0), *parts]).astype(np.float32)
