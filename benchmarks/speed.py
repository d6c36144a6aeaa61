"""How fast it is, part by part, each beside a yardstick measured in the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import numpy as np

from capsearch.benchmarks import synthetic
from capsearch.benchmarks.timing import Measurement, latency, rate, rounds, timed
from capsearch.encoders import models
from capsearch.encoders.preprocess import decode
from capsearch.engine.errors import CapsearchError
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import Pixels, Vectors
from capsearch.indexer.embedded.vector_index import FaissIndex

if TYPE_CHECKING:
    from PIL.Image import Image

CAPSEARCH = "from capsearch.ui.cli import run; run()"
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
BATCH = 32
READ_MB = 32  # the built-in text encoder's weights in memory
SIZES = (10_000, 100_000)
TOP = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure with; `repeats` is for fresh processes, everything else scales with it."""

    model: str | None = None
    repeats: int = 15


def measure_command(settings: Settings) -> Iterator[Measurement]:
    """`capsearch query` from start to end in fresh processes, beside Python and torch."""
    python = [sys.executable, "-c"]
    with TemporaryDirectory() as folder:
        index = _small_index(Path(folder), settings.model)
        actions = {"python -c pass": partial(_run, [*python, "pass"])}
        if find_spec("torch") is not None:
            actions["python -c 'import torch'"] = partial(_run, [*python, "import torch"])
        for language in synthetic.WORDS:
            query = [
                *python,
                CAPSEARCH,
                "query",
                synthetic.sentences(language)[0],
                "--index",
                str(index),
            ]
            actions[f"capsearch query, {language}"] = partial(_run, query)
        taken = rounds(actions, settings.repeats)
    lines = {name: latency("command", name, seconds) for name, seconds in taken.items()}
    yardstick = lines.get("python -c 'import torch'", lines["python -c pass"])
    for name, line in lines.items():
        yield line if name == yardstick.name else line.against(yardstick)


def measure_text(settings: Settings) -> Iterator[Measurement]:
    """Query encoding in a process of its own that has one thread."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # read once, when a process loads its numeric libraries
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), initializer=_pin) as pool:
            yield from pool.submit(_text_in_child, settings).result()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _text_in_child(settings: Settings) -> tuple[Measurement, ...]:
    return tuple(time_text(models.load(settings.model).text, settings.repeats))


def _pin() -> None:
    if sys.platform == "linux":  # elsewhere the libraries' own setting must do
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def time_text(encoder: TextEncoder, repeats: int) -> Iterator[Measurement]:
    """Single sentences in ms and batches in sentences a second, for each language it reads.

    A sentence passes every weight once, so reading as many bytes is the least it can take.
    """
    memory = np.ones(READ_MB << 18, np.float32)
    for language in (one for one in synthetic.WORDS if one in encoder.languages):
        texts = synthetic.sentences(language)
        warm, fresh = texts[:16], texts[16:]
        for text in warm:
            encoder.encode([text], language)
        single = [timed(partial(encoder.encode, [text], language)) for text in fresh]
        reading = [timed(memory.sum) for _ in fresh]
        yardstick = latency("text", f"reading {READ_MB} MB, {language}", reading)
        yield yardstick
        yield latency("text", f"one sentence, {language}", single).against(yardstick)
        batch = [timed(partial(encoder.encode, texts, language)) for _ in range(repeats)]
        yield rate("text", f"batches of {len(texts)}, {language}", [len(texts)] * repeats, batch)


class EncodesImages(Protocol):
    """A backbone, alone or with its projection."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        ...

    def preprocess(self, image: Image) -> Pixels:
        """An opened image as the pixels it wants."""
        ...

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F) of N squares."""
        ...


def measure_images(settings: Settings) -> Iterator[Measurement]:
    """ImageStore a second with decoding: every built-in backbone, or that of the model named."""
    for encoder in _image_encoders(settings.model):
        yield from time_images(encoder, synthetic.images(BATCH), settings.repeats)


def _image_encoders(model: str | None) -> Iterator[EncodesImages]:
    if model is not None:
        yield models.load(model).image
        return
    for summary in models.available():
        if summary.built_in and summary.kind == "backbone":
            yield models.load_backbone(summary.name)


def time_images(
    encoder: EncodesImages, images: Sequence[bytes], repeats: int
) -> Iterator[Measurement]:
    """Decoding alone, then decoding and encoding, beside each other."""
    with ThreadPoolExecutor() as pool:

        def pixels() -> list[Pixels]:
            return list(pool.map(lambda one: decode(one, encoder.preprocess).pixels, images))

        taken = rounds({"decode": pixels, "all": lambda: encoder.features(pixels())}, repeats)
    counts = [len(images)] * repeats
    decoding = rate("images", f"{encoder.name}: decoding alone", counts, taken["decode"])
    yield decoding
    yield rate("images", f"{encoder.name}: decoded and encoded", counts, taken["all"]).against(
        decoding
    )


def measure_search(settings: Settings) -> Iterator[Measurement]:
    """The ten best of 10,000 and of 100,000 vectors, beside brute force in numpy."""
    dimension = models.load(settings.model).image.dimension
    for count in SIZES:
        yield from time_search(synthetic.vectors(count, dimension), settings.repeats)


def time_search(vectors: Vectors, repeats: int) -> Iterator[Measurement]:
    """The index that `capsearch query` uses beside the plainest exact search there is."""
    rows = np.arange(len(vectors))
    index = FaissIndex(vectors, rows, [f"{row:08d}" for row in rows], rows)
    queries = cycle(synthetic.vectors(repeats + 1, vectors.shape[1], seed=1))
    actions: dict[str, Callable[[], object]] = {
        "numpy": lambda: brute_force(vectors, next(queries), TOP),
        "index": lambda: index.search(next(queries), TOP),
    }
    taken = rounds(actions, repeats)
    plain = latency("search", f"{len(vectors):,} vectors: numpy", taken["numpy"])
    yield plain
    yield latency("search", f"{len(vectors):,} vectors: the index", taken["index"]).against(plain)


def brute_force(vectors: Vectors, query: Vectors, count: int) -> tuple[int, ...]:
    """The rows with the `count` highest products, best first."""
    scores = vectors @ query  # (N, D) x (D,) -> (N,)
    best = np.argpartition(-scores, count)[:count]
    return tuple(best[np.argsort(-scores[best])].tolist())


def _small_index(folder: Path, model: str | None) -> Path:
    images, index = folder / "images", folder / "index"
    images.mkdir()
    for number, content in enumerate(synthetic.images(8)):
        (images / f"{number}.jpg").write_bytes(content)
    named = ["--model", model] if model else []
    _run([sys.executable, "-c", CAPSEARCH, "index", str(images), "--index", str(index), *named])
    return index


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = " ".join(command[2:]).replace(CAPSEARCH, "capsearch")
        raise CapsearchError(f"`{said}` failed: {done.stderr.strip()[-500:]}")


PARTS: Mapping[str, Callable[[Settings], Iterator[Measurement]]] = {
    "command": measure_command,
    "text": measure_text,
    "images": measure_images,
    "search": measure_search,
}


def measure(parts: Sequence[str], settings: Settings) -> Iterator[Measurement]:
    """The parts named, in the order of PARTS; all of them when none is."""
    for name, part in PARTS.items():
        if name in parts or not parts:
            yield from part(settings)
