"""What captions cost to prepare, computed once: sentence vectors and word vectors on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from capsearch.encoders.datasets.features import FeatureCache, Report
from capsearch.engine.records import Vectors

AT_ONCE = 4096  # sentences between two reports


class EncodesSentences(Protocol):
    """What turns sentences into vectors."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(N, S)."""
        ...


@dataclass(frozen=True)
class CachedSentenceEncoder:
    """A sentence encoder that remembers: every text is encoded once, whatever run asks."""

    encoder: EncodesSentences
    digest: str  # of the encoder; another one's vectors lie in another file
    cache: FeatureCache
    report: Report | None = field(default=None, repr=False)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(N, S) float16."""
        ids = [_hash(text) for text in texts]
        fresh = {at: text for at, text in zip(ids, texts, strict=True) if at not in self._known}
        if fresh:
            self._known.update(zip(fresh, self._encoded(list(fresh.values())), strict=True))
            self.cache.save(self._key, self._known)
        return np.stack([self._known[at] for at in ids])

    def _encoded(self, texts: Sequence[str]) -> Vectors:
        parts = []
        for start in range(0, len(texts), AT_ONCE):
            part = self.encoder.encode(texts[start : start + AT_ONCE])
            parts.append(part.astype(np.float16))
            if self.report:
                self.report(min(start + AT_ONCE, len(texts)), len(texts))
        return np.concatenate(parts)

    @property
    def _key(self) -> str:
        return f"sentences-{_hash(self.digest)}"

    @cached_property
    def _known(self) -> dict[str, Vectors]:
        return dict(self.cache.load(self._key))


def cached_word_vectors(
    cache: FeatureCache,
    words: Sequence[str],
    made_from: Sequence[object],
    make: Callable[[], Vectors],
) -> Vectors:
    """(V, W) word vectors, made only if nothing made from the same things is there."""
    key = f"words-{_hash(repr(made_from))}"
    known: Mapping[str, Vectors] = cache.load(key)
    if list(known) != list(words):
        known = dict(zip(words, make(), strict=True))
        cache.save(key, known)
    return np.stack([known[word] for word in words])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
