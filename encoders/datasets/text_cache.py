"""Sentence vectors and word vectors of captions, computed once and cached on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from capsearch.encoders.datasets.features import FeatureCache, Report
from capsearch.engine.records import Vectors

BATCH_SIZE = 4096  # sentences between two progress reports


class EncodesSentences(Protocol):
    """A sentence encoder: one vector per sentence."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(N, S) vectors of N sentences."""
        ...


@dataclass(frozen=True)
class CachedSentenceEncoder:
    """A sentence encoder with a cache that all runs share: every text is encoded once."""

    encoder: EncodesSentences
    digest: str  # of the encoder; each digest has a cache file of its own
    cache: FeatureCache
    report: Report | None = field(default=None, repr=False)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(N, S) float16; (0, 0) without texts."""
        if not texts:
            return np.empty((0, 0), np.float16)
        keys = [_hash(text) for text in texts]
        missing = {
            key: text for key, text in zip(keys, texts, strict=True) if key not in self._cached
        }
        if missing:
            self._cached.update(zip(missing, self._encode(list(missing.values())), strict=True))
            self.cache.save(self._cache_key, self._cached)
        return np.stack([self._cached[key] for key in keys])

    def _encode(self, texts: Sequence[str]) -> Vectors:
        parts = []
        for start in range(0, len(texts), BATCH_SIZE):
            part = self.encoder.encode(texts[start : start + BATCH_SIZE])
            parts.append(part.astype(np.float16))
            if self.report:
                self.report(min(start + BATCH_SIZE, len(texts)), len(texts))
        return np.concatenate(parts)

    @property
    def _cache_key(self) -> str:
        return f"sentences-{_hash(self.digest)}"

    @cached_property
    def _cached(self) -> dict[str, Vectors]:
        return dict(self.cache.load(self._cache_key))


def cached_word_vectors(
    cache: FeatureCache,
    words: Sequence[str],
    made_from: Sequence[object],
    make: Callable[[], Vectors],
) -> Vectors:
    """(V, W) word vectors, computed by `make` unless cached for the same words and `made_from`."""
    key = f"words-{_hash(repr(made_from))}"
    cached: Mapping[str, Vectors] = cache.load(key)
    if list(cached) != list(words):
        cached = dict(zip(words, make(), strict=True))
        cache.save(key, cached)
    return np.stack([cached[word] for word in words])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
