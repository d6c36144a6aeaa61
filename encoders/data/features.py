"""What models make of a data set, computed once and cached on disk.

Features of images, sentence vectors of captions, and vectors of their words.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from capsearch.encoders.atomic import replacing
from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage
from capsearch.encoders.images.preprocess import Preprocess, decode
from capsearch.engine.errors import DataProblem, InvalidImage
from capsearch.engine.records import Pixels, Vectors

if TYPE_CHECKING:
    from PIL.Image import Image


BATCH = 32
Report = Callable[[int, int], None]  # (done, of)


class FeatureEncoder(Protocol):
    """A backbone, with or without a projection."""

    @property
    def digest(self) -> str:
        """Identifies the weights; features of different digests are not comparable."""
        ...

    def preprocess(self, image: Image) -> Pixels:
        """The pixels that `features` takes, from an opened image."""
        ...

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F) features of N preprocessed images."""
        ...


@dataclass(frozen=True, slots=True)
class FeatureCache:
    """Features on disk by backbone and data set: one .npz each, safe to delete."""

    folder: Path

    def load(self, key: str) -> Mapping[str, Vectors]:
        """Features by image id; empty where there is no readable file."""
        try:
            with np.load(self._path(key), allow_pickle=False) as stored:
                return dict(zip(stored["ids"].tolist(), stored["features"], strict=True))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return {}

    def save(self, key: str, features: Mapping[str, Vectors]) -> None:
        """Replaces the file atomically: a reader finds the old one or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(key)) as temporary, temporary.open("wb") as file:
            np.savez(file, ids=np.array(list(features)), features=np.stack(list(features.values())))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def default_cache() -> Path:
    """The features folder in the user's cache directory."""
    from platformdirs import user_cache_path

    return user_cache_path("capsearch") / "features"


def load_features(
    encoder: FeatureEncoder,
    data: CaptionDataset,
    cache: FeatureCache | None,
    report: Report | None = None,
    flip: bool = False,
) -> tuple[CaptionDataset, Vectors]:
    """The images that can be read, and their (N, F) features in the same order.

    Only images missing from the cache are encoded, so a run over a part of a split, or one that
    was interrupted, saves work for the run over all of it. `flip` mirrors the images left to right.
    DataProblem when no image can be read.
    """
    key = cache_key(encoder, data, flip)
    known = dict(cache.load(key)) if cache else {}
    missing = replace(data, images=tuple(image for image in data.images if image.id not in known))
    before = len(known)
    try:
        for ids, features in _encoded(encoder, missing, flip):
            known.update(zip(ids, features, strict=True))
            if report:
                report(len(known) - before, len(missing))
    finally:  # Ctrl-C keeps what is done
        if cache and len(known) > before:
            cache.save(key, known)
    readable = replace(data, images=tuple(image for image in data.images if image.id in known))
    if not readable.images:
        raise DataProblem("none of the images can be read; check the archives")
    return readable, np.stack([known[image.id] for image in readable.images])


def cache_key(encoder: FeatureEncoder, data: CaptionDataset, flip: bool = False) -> str:
    """Changes with the backbone, the splits and the files the images come from."""
    stored_in = [f"{path.resolve()}:{path.stat().st_size}" for path in data.store.archives]
    stored_in += [str(path.resolve()) for path in data.store.folders]
    parts = (encoder.digest, "flip" if flip else "", *data.splits, *stored_in)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _encoded(
    encoder: FeatureEncoder, data: CaptionDataset, flip: bool
) -> Iterator[tuple[list[str], Vectors]]:
    for ids, pixels in decoded_batches(data, encoder.preprocess, flip):
        yield ids, encoder.features(pixels)


def decoded_batches(
    data: CaptionDataset, preprocess: Preprocess, flip: bool = False
) -> Iterator[tuple[list[str], list[Pixels]]]:
    """Batches of (ids, pixels); the next batch is decoded while the caller encodes this one."""

    def pixels(entry: tuple[CaptionedImage, bytes]) -> tuple[str, Pixels | None]:
        image, content = entry
        try:
            decoded = decode(content, preprocess).pixels
        except InvalidImage:
            return image.id, None  # skipped: its id is missing from the batches
        return image.id, np.ascontiguousarray(decoded[:, ::-1]) if flip else decoded

    images = data.contents()
    with ThreadPoolExecutor() as pool:
        upcoming = pool.map(pixels, list(islice(images, BATCH)))
        while batch := list(upcoming):
            upcoming = pool.map(pixels, list(islice(images, BATCH)))
            readable = [(image_id, decoded) for image_id, decoded in batch if decoded is not None]
            if readable:
                yield [image_id for image_id, _ in readable], [decoded for _, decoded in readable]


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
