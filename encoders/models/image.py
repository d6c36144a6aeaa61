"""The built-in image encoder: a backbone on ONNX Runtime and a projection to the shared space.

How a network encodes fastest on this machine: batch size and threads, measured once.

One batch on all cores, or a batch on each core at the same time; small batches fit the caches of
the CPU, large ones suit a GPU. What was measured is kept in `tuning.json` in the user's cache
directory, and measured again when it is not there.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from platformdirs import user_cache_path

from capsearch.encoders.atomic import write_text
from capsearch.encoders.models.hubness import Hubness
from capsearch.encoders.models.model_folder import Arrays
from capsearch.engine.errors import UnknownModel
from capsearch.engine.records import ImageFeatures, Pixels, Vectors
from capsearch.engine.vectors import as_document, unit

if TYPE_CHECKING:
    from PIL.Image import Image


FILE = "tuning.json"
_MIN_S = 0.2  # of a measurement


@dataclass(frozen=True, slots=True)
class Tuning:
    """Images in a batch, and batches at the same time; a lone batch uses all cores."""

    batch: int
    workers: int


CUDA = "CUDAExecutionProvider"
# TensorRT compiles a network for minutes, in each process; where its libraries are missing, ONNX
# Runtime prints to stdout. Azure's is for calls over the network.
_LEFT_OUT = (
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
    "AzureExecutionProvider",
)
# The smallest ONNX graph: y = x.
_IDENTITY = (
    b'\x08\x08\x12\x00:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08'
    b"\x01\x12\x04\n\x02\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
SAFE = Tuning(batch=8, workers=1)
TUNED_AFTER = 256  # images in one process; measuring takes as long as encoding as many


def candidates(cores: int) -> tuple[Tuning, ...]:
    """What is tried."""
    batches = (1, 4, 8, 32)
    workers = (1,) if cores == 1 else (1, cores)
    return tuple(Tuning(batch, many) for many in workers for batch in batches)


def tuned(key: str, run: Callable[[Tuning, int], None]) -> Tuning:
    """The fastest way for the network called `key`: as measured before, or measured now.

    `run` encodes so many images in the given way.
    """
    path, cores = user_cache_path("capsearch") / FILE, os.cpu_count() or 1
    name = f"{key} on {cores} cores"
    known = _read(path)
    if name in known:
        return known[name]
    found = max(candidates(cores), key=lambda one: _rate(one, run))
    stored = {key: asdict(one) for key, one in {**_read(path), name: found}.items()}
    with suppress(OSError):  # then it is measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(stored, indent=1, sort_keys=True))
    return found


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` that cover so many images."""
    return (slice(start, start + size) for start in range(0, count, size))


def _rate(one: Tuning, run: Callable[[Tuning, int], None]) -> float:
    """Images a second."""
    count = one.batch * one.workers
    run(one, count)  # the first run allocates
    started, done = perf_counter(), 0
    while (taken := perf_counter() - started) < _MIN_S:
        run(one, count)
        done += count
    return done / taken


def _read(path: Path) -> Mapping[str, Tuning]:
    """What was measured before; a damaged file counts as none."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Tuning(int(one["batch"]), int(one["workers"])) for name, one in stored.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


GRID = "grid"  # the ONNX output with the feature map


@dataclass(frozen=True)
class Backbone:
    """An image network that maps pixels to features.

    Scaling is part of the ONNX graph: its input is (N, S, S, 3) uint8 pixels. Its first output are
    features standardised by the mean and standard deviation over the training images, or, of a
    CLIP-like image tower, the final unit vector. A second output called "grid", (N, G, C), is the
    feature map before pooling; graphs may lack it.
    """

    name: str
    digest: str
    input_size: int
    dimension: int
    path: Path
    resample: str = "bilinear"  # the interpolation it was trained with
    resize: str = "squash"  # a key of encoders.images.preprocess.RESIZES

    def preprocess(self, image: Image) -> Pixels:
        """The pixels the network was trained with: squashed, cropped or padded."""
        from capsearch.encoders.images.preprocess import RESIZES

        return RESIZES[self.resize](image, self.input_size, self.resample)

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F) features of preprocessed images; ValueError for another shape or type."""
        return self._run(pixels, self._outputs[:1]).pooled

    def feature_maps(self, pixels: Sequence[Pixels]) -> ImageFeatures:
        """Features and, from the same pass, the feature map where the graph has one."""
        return self._run(pixels, self._outputs)

    def _run(self, pixels: Sequence[Pixels], outputs: Sequence[str]) -> ImageFeatures:
        """After some hundred images it is worth to know the fastest way (encoders.models.image)."""
        if not pixels:
            return ImageFeatures(np.zeros((0, self.dimension), np.float32))
        batch = stacked(pixels, self.input_size)
        self._encoded["images"] += len(batch)
        worth_it = self._encoded["images"] > TUNED_AFTER and len(batch) > 1
        return self._encode(batch, outputs, self._tuning if worth_it else SAFE)

    def _encode(self, batch: Pixels, outputs: Sequence[str], tuning: Tuning) -> ImageFeatures:
        """The outputs for a batch, which is run in parts."""
        session = self._session if tuning.workers == 1 else self._one_thread_session

        def run(part: slice) -> list[Vectors]:
            found = session.run(outputs, {"pixels": batch[part]})
            return [np.asarray(one, np.float32) for one in found]

        parts = chunks(len(batch), tuning.batch)
        if tuning.workers == 1:
            found = [run(part) for part in parts]
        else:
            with ThreadPoolExecutor(tuning.workers, "encode") as pool:
                found = [*pool.map(run, parts)]
        return ImageFeatures(*(np.concatenate(one) for one in zip(*found, strict=True)))

    @cached_property
    def _outputs(self) -> tuple[str, ...]:
        """The features, and the feature map if there is one."""
        features, *more = (output.name for output in self._session.get_outputs())
        return (features, GRID) if GRID in more else (features,)

    @cached_property
    def _encoded(self) -> Counter[str]:
        return Counter()

    @cached_property
    def _tuning(self) -> Tuning:
        import onnxruntime

        shape = (self.input_size, self.input_size, 3)

        def run(tuning: Tuning, count: int) -> None:
            self._encode(np.zeros((count, *shape), np.uint8), self._outputs[:1], tuning)

        return tuned(f"{self.name}@{self.digest}, ONNX Runtime {onnxruntime.__version__}", run)

    @cached_property
    def _session(self) -> Any:
        return open_session(self.path)

    @cached_property
    def _one_thread_session(self) -> Any:
        return open_session(self.path, threads=1)


def check_backbone(head: Mapping[str, Any], backbone: ImageNetwork) -> None:
    """UnknownModel if the head with this card was trained on features of another backbone."""
    expected = head.get("backbone_digest", backbone.digest)
    if backbone.digest != expected:
        raise UnknownModel(
            f"{head['name']} describes features of {head['backbone']}@{expected}, not of "
            f"{backbone.name}@{backbone.digest}"
        )


def stacked(pixels: Sequence[Pixels], size: int) -> Pixels:
    """(N, size, size, 3) a batch of preprocessed images; ValueError for another shape or type."""
    batch = np.stack(pixels)
    if batch.shape[1:] != (size, size, 3) or batch.dtype != np.uint8:
        raise ValueError(
            f"images must be {(size, size, 3)} uint8, not {batch.shape[1:]} {batch.dtype}"
        )
    return batch


def open_session(model: Path | bytes, threads: int = 0) -> Any:
    """An ONNX Runtime session on the fastest device that works here: `providers`.

    `threads` is how many work on one batch; 0 is one a core.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # Idle workers must not spin: images are decoded on the same cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=providers())


@cache
def providers() -> tuple[str, ...]:
    """The execution providers of the installed ONNX Runtime, the fastest first."""
    import onnxruntime

    names = tuple(onnxruntime.get_available_providers())
    if CUDA in names:
        with redirect_stdout(sys.stderr):  # it prints what it does not find
            onnxruntime.preload_dlls()  # CUDA's libraries, where pip installed them
    return tuple(name for name in names if name not in _LEFT_OUT)


def device() -> str:
    """What networks run on here, e.g. cpu or cuda: the first provider that a session gets."""
    used: Sequence[str] = open_session(_IDENTITY).get_providers()
    return used[0].removesuffix("ExecutionProvider").lower()


class ImageNetwork(Protocol):
    """Pixels to features: a Backbone on ONNX Runtime, or a network in torch."""

    @property
    def name(self) -> str:
        """A human name."""
        ...

    @property
    def digest(self) -> str:
        """Features are comparable only if it is equal."""
        ...

    @property
    def dimension(self) -> int:
        """F, the width of a feature."""
        ...

    def preprocess(self, image: Image) -> Pixels:
        """The pixels that `features` takes, from an opened image."""
        ...

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F) features of N preprocessed images."""
        ...

    def feature_maps(self, pixels: Sequence[Pixels]) -> ImageFeatures:
        """Features and, from the same pass, the feature map where the network gives one."""
        ...


@dataclass(frozen=True)
class ProjectedImageEncoder:
    """An image network and its projection into the shared space (engine ImageEncoder)."""

    backbone: ImageNetwork
    width: int  # of the shared space
    projection: Path | None  # None: features are vectors of the shared space already
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

    def feature_maps(self, pixels: Sequence[Pixels]) -> ImageFeatures:
        """Backbone features, and the feature map where the backbone gives one."""
        return self.backbone.feature_maps(pixels)

    def project(self, features: Vectors) -> Vectors:
        """(N, F) -> (N, D) rows for an index: unit vectors and their hubness penalties."""
        vectors = unit(self._projected(features.astype(np.float32)))
        return as_document(vectors, self.hubness.penalties(vectors))

    def _projected(self, features: Vectors) -> Vectors:
        if self.projection is None:
            return features
        return np.asarray(features @ self._arrays["image_W"].T + self._arrays["image_b"])

    @cached_property
    def _arrays(self) -> Arrays:
        assert self.projection is not None
        return Arrays(self.projection)
