"""Backbone features of a data set's images, computed once and kept."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from capsearch.encoders.datasets.dataset import CaptionDataset, CaptionedImage
from capsearch.encoders.preprocess import Preprocess, decode
from capsearch.engine.errors import DataProblem, InvalidImage
from capsearch.engine.records import Pixels, Vectors

if TYPE_CHECKING:
    from PIL.Image import Image

BATCH = 32
Report = Callable[[int, int], None]  # (done, of)


class FeatureEncoder(Protocol):
    """What features come from: a backbone, with or without a projection."""

    @property
    def digest(self) -> str:
        """Features are comparable only within it."""
        ...

    def preprocess(self, image: Image) -> Pixels:
        """An opened image as the pixels it wants."""
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
    data: CaptionDataset,
    cache: FeatureCache | None,
    report: Report | None = None,
    flip: bool = False,
) -> tuple[CaptionDataset, Vectors]:
    """The photos that have a readable image, and their (N, F) features in the same order.

    Only what the cache lacks goes through the backbone, so a run over a part of a split
    helps the run over all of it. `flip` mirrors the images left to right.
    DataProblem when no image can be read.
    """
    key = cache_key(encoder, data, flip)
    known = dict(cache.load(key)) if cache else {}
    missing = replace(data, images=tuple(p for p in data.images if p.id not in known))
    fresh = _encode(encoder, missing, flip, report) if missing.images else {}
    known.update(fresh)
    if cache and fresh:
        cache.save(key, known)
    kept = replace(data, images=tuple(p for p in data.images if p.id in known))
    if not kept.images:
        raise DataProblem("none of the photos has a readable image; check the archives")
    return kept, np.stack([known[photo.id] for photo in kept.images])


def cache_key(encoder: FeatureEncoder, data: CaptionDataset, flip: bool = False) -> str:
    """Changes with the backbone, the splits and the files the images come from."""
    places = [f"{path.resolve()}:{path.stat().st_size}" for path in data.places.archives]
    places += [str(path.resolve()) for path in data.places.folders]
    parts = (encoder.digest, "flip" if flip else "", *data.splits, *places)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _encode(
    encoder: FeatureEncoder, data: CaptionDataset, flip: bool, report: Report | None
) -> dict[str, Vectors]:
    found: dict[str, Vectors] = {}
    for ids, pixels in decoded_batches(data, encoder.preprocess, flip):
        found.update(zip(ids, encoder.features(pixels), strict=True))
        if report:
            report(len(found), len(data))
    return found


def decoded_batches(
    data: CaptionDataset, preprocess: Preprocess, flip: bool = False
) -> Iterator[tuple[list[str], list[Pixels]]]:
    """Batches of (ids, pixels); the next batch is decoded while the last one is encoded."""

    def pixels(pair: tuple[CaptionedImage, bytes]) -> tuple[str, Pixels | None]:
        try:
            found = decode(pair[1], preprocess).pixels
        except InvalidImage:
            return pair[0].id, None  # left out; the caller sees which images are missing
        return pair[0].id, np.ascontiguousarray(found[:, ::-1]) if flip else found

    images = data.contents()
    with ThreadPoolExecutor() as pool:
        upcoming = pool.map(pixels, list(islice(images, BATCH)))
        while batch := list(upcoming):
            upcoming = pool.map(pixels, list(islice(images, BATCH)))
            good = [(one, content) for one, content in batch if content is not None]
            if good:
                yield [one for one, _ in good], [content for _, content in good]
