"""Backbone features of a data set's pictures, computed once and kept."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from capsearch.encoders.training.data import CaptionData, Photo
from capsearch.engine.errors import DataProblem, InvalidImage
from capsearch.engine.records import Pixels, Vectors

BATCH = 32
Report = Callable[[int, int], None]  # (done, of)
Decode = Callable[[bytes, int], Pixels]  # InvalidImage for what is not a picture


class FeatureEncoder(Protocol):
    """What features come from: a backbone, with or without a projection."""

    @property
    def digest(self) -> str:
        """Features are comparable only within it."""
        ...

    @property
    def input_size(self) -> int:
        """Side of the square a picture is squashed to."""
        ...

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F)."""
        ...


@dataclass(frozen=True, slots=True)
class FeatureCache:
    """Features on disk by backbone and data set: one .npz each, safe to delete."""

    folder: Path

    def load(self, key: str) -> Mapping[str, Vectors]:
        """Features by photo id; none where there is no readable file."""
        try:
            with np.load(self._path(key), allow_pickle=False) as stored:
                return dict(zip(stored["ids"].tolist(), stored["features"], strict=True))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return {}

    def save(self, key: str, features: Mapping[str, Vectors]) -> None:
        """Replaces what was there, at once: a reader sees the old file or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f"{key}.{os.getpid()}.tmp"
        with unfinished.open("wb") as file:
            np.savez(file, ids=np.array(list(features)), features=np.stack(list(features.values())))
        unfinished.replace(self._path(key))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def default_cache() -> Path:
    """The user's cache directory."""
    from platformdirs import user_cache_path

    return user_cache_path("capsearch") / "features"


def load_features(
    encoder: FeatureEncoder,
    data: CaptionData,
    cache: FeatureCache | None,
    decode: Decode,
    report: Report | None = None,
    view: str = "",
) -> tuple[CaptionData, Vectors]:
    """The photos that have a readable picture, and their (N, F) features in the same order.

    Only what the cache lacks goes through the backbone, so a run over a part of a split
    helps the run over all of it. `view` names what `decode` does to the pictures, if anything.
    DataProblem when no picture can be read.
    """
    key = cache_key(encoder, data, view)
    known = dict(cache.load(key)) if cache else {}
    missing = replace(data, photos=tuple(p for p in data.photos if p.id not in known))
    fresh = _encode(encoder, missing, decode, report) if missing.photos else {}
    known.update(fresh)
    if cache and fresh:
        cache.save(key, known)
    kept = replace(data, photos=tuple(p for p in data.photos if p.id in known))
    if not kept.photos:
        raise DataProblem("none of the photos has a readable picture; check the archives")
    return kept, np.stack([known[photo.id] for photo in kept.photos])


def cache_key(encoder: FeatureEncoder, data: CaptionData, view: str = "") -> str:
    """Changes with the backbone, the splits and the files the pictures come from."""
    places = [f"{path.resolve()}:{path.stat().st_size}" for path in data.places.archives]
    places += [str(path.resolve()) for path in data.places.folders]
    parts = (encoder.digest, str(encoder.input_size), view, *data.splits, *places)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _encode(
    encoder: FeatureEncoder, data: CaptionData, decode: Decode, report: Report | None
) -> dict[str, Vectors]:
    found: dict[str, Vectors] = {}
    for photos, pixels in decoded_batches(data, encoder.input_size, decode):
        found.update(zip(photos, encoder.features(pixels), strict=True))
        if report:
            report(len(found), len(data))
    return found


def decoded_batches(
    data: CaptionData, size: int, decode: Decode
) -> Iterator[tuple[list[str], list[Pixels]]]:
    """Batches of (ids, pixels); the next batch is decoded while the last one is encoded."""

    def pixels(pair: tuple[Photo, bytes]) -> tuple[str, Pixels | None]:
        try:
            return pair[0].id, decode(pair[1], size)
        except InvalidImage:
            return pair[0].id, None  # left out; the caller sees which photos are missing

    pictures = data.pictures()
    with ThreadPoolExecutor() as pool:
        upcoming = pool.map(pixels, list(islice(pictures, BATCH)))
        while batch := list(upcoming):
            upcoming = pool.map(pixels, list(islice(pictures, BATCH)))
            good = [(photo, content) for photo, content in batch if content is not None]
            if good:
                yield [photo for photo, _ in good], [content for _, content in good]
