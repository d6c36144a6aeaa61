"""The built-in image encoder: a backbone on ONNX Runtime and a projection to the shared space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.hubness import Hubness
from capsearch.encoders.model_folder import Arrays
from capsearch.encoders.tuning import SAFE, TUNED_AFTER, Tuning, chunks, tuned
from capsearch.engine.records import Pixels, Vectors
from capsearch.engine.vectors import as_document, unit

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Backbone:
    """An image network that maps pixels to features.

    Scaling is part of the ONNX graph: its input is (N, S, S, 3) uint8 pixels, its output features
    standardised by the mean and standard deviation over the training images.
    """

    name: str
    digest: str
    input_size: int
    dimension: int
    path: Path
    resample: str = "bilinear"  # the interpolation it was trained with

    def preprocess(self, image: Image) -> Pixels:
        """The whole image, squashed to the input size."""
        from capsearch.encoders.preprocess import squash

        return squash(image, self.input_size, self.resample)

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F) features of preprocessed images; ValueError for another shape or type.

        After some hundred images it is worth to know the fastest way (encoders.tuning).
        """
        if not pixels:
            return np.zeros((0, self.dimension), np.float32)
        batch = np.stack(pixels)  # (N, S, S, 3)
        expected = (self.input_size, self.input_size, 3)
        if batch.shape[1:] != expected or batch.dtype != np.uint8:
            raise ValueError(
                f"images must be {expected} uint8, not {batch.shape[1:]} {batch.dtype}"
            )
        self._encoded["images"] += len(batch)
        worth_it = self._encoded["images"] > TUNED_AFTER and len(batch) > 1
        return self._encode(batch, self._tuning if worth_it else SAFE)

    def _encode(self, batch: NDArray[np.uint8], tuning: Tuning) -> Vectors:
        session = self._session if tuning.workers == 1 else self._one_thread_session

        def run(part: slice) -> Vectors:
            (features,) = session.run(None, {"pixels": batch[part]})
            return np.asarray(features, np.float32)

        parts = chunks(len(batch), tuning.batch)
        if tuning.workers == 1:
            return np.concatenate([run(part) for part in parts])
        with ThreadPoolExecutor(tuning.workers, "encode") as pool:
            return np.concatenate([*pool.map(run, parts)])

    @cached_property
    def _encoded(self) -> Counter[str]:
        return Counter()

    @cached_property
    def _tuning(self) -> Tuning:
        import onnxruntime

        pixels = np.zeros((64, self.input_size, self.input_size, 3), np.uint8)

        def run(tuning: Tuning, count: int) -> None:
            self._encode(np.resize(pixels, (count, *pixels.shape[1:])), tuning)

        return tuned(f"{self.name}@{self.digest}, ONNX Runtime {onnxruntime.__version__}", run)

    @cached_property
    def _session(self) -> Any:
        return open_session(self.path)

    @cached_property
    def _one_thread_session(self) -> Any:
        return open_session(self.path, threads=1)


def open_session(model: Path | bytes, threads: int = 0) -> Any:
    """An ONNX Runtime session with every execution provider that is installed.

    `threads` is how many work on one batch; 0 is one a core.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # Idle workers must not spin: images are decoded on the same cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        model, options, providers=onnxruntime.get_available_providers()
    )


@dataclass(frozen=True)
class ProjectedImageEncoder:
    """A backbone and the projection trained with the text encoders (engine ImageEncoder)."""

    backbone: Backbone
    width: int  # of the shared space
    projection: Path
    hubness: Hubness

    @property
    def name(self) -> str:
        """The backbone's name."""
        return self.backbone.name

    @property
    def digest(self) -> str:
        """The backbone's digest: features are comparable only if it is equal."""
        return self.backbone.digest

    def preprocess(self, image: Image) -> Pixels:
        """The pixels that the backbone takes."""
        return self.backbone.preprocess(image)

    @property
    def feature_dimension(self) -> int:
        """F, the width of a feature."""
        return self.backbone.dimension

    @property
    def dimension(self) -> int:
        """D, the width of an image vector: the shared space and the hubness penalty."""
        return self.width + 1

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F) backbone features."""
        return self.backbone.features(pixels)

    def project(self, features: Vectors) -> Vectors:
        """(N, F) -> (N, D) rows for an index: unit vectors and their hubness penalties."""
        w = self._arrays
        vectors = unit(features.astype(np.float32) @ w["image_W"].T + w["image_b"])
        return as_document(vectors, self.hubness.penalties(vectors))

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self.projection)
