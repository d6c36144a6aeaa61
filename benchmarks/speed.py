"""Speed of commands, encoders and search, each with a baseline measured in the same run."""

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
from capsearch.indexer.embedded import nearest
from capsearch.indexer.embedded.ranking import MIN_DEPTH

if TYPE_CHECKING:
    from PIL.Image import Image

CAPSEARCH = "from capsearch.ui.cli import run; run()"
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
BATCH = 32
READ_MB = 32  # size of the built-in text encoder's weights in memory
SIZES = (10_000, 100_000)
TOP = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """The model to measure (None: the built-in one), and how often to repeat a measurement."""

    model: str | None = None
    repeats: int = 15


def measure_command(settings: Settings) -> Iterator[Measurement]:
    """`capsearch query` in a new process, compared with starting Python and importing torch."""
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
    baseline = lines.get("python -c 'import torch'", lines["python -c pass"])
    for name, line in lines.items():
        yield line if name == baseline.name else line.against(baseline)


def measure_text(settings: Settings) -> Iterator[Measurement]:
    """Encoding queries, in a separate process with one thread."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # read only when a process loads its numeric libraries
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), initializer=_pin) as pool:
            yield from pool.submit(_text_in_child, settings).result()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _text_in_child(settings: Settings) -> tuple[Measurement, ...]:
    return tuple(time_text(models.load(settings.model).text, settings.repeats))


def _pin() -> None:
    if sys.platform == "linux":  # elsewhere only ONE_THREAD limits the libraries
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def time_text(encoder: TextEncoder, repeats: int) -> Iterator[Measurement]:
    """Latency of one query, and queries per second in batches, for each language.

    Encoding a query reads every weight once, so the baseline is reading as many bytes.
    """
    memory = np.ones(READ_MB << 18, np.float32)
    for language in (one for one in synthetic.WORDS if one in encoder.languages):
        texts = synthetic.sentences(language)
        warm, fresh = texts[:16], texts[16:]
        for text in warm:
            encoder.encode([text], language)
        single = [timed(partial(encoder.encode, [text], language)) for text in fresh]
        reading = [timed(memory.sum) for _ in fresh]
        baseline = latency("text", f"reading {READ_MB} MB, {language}", reading)
        yield baseline
        yield latency("text", f"one query, {language}", single).against(baseline)
        batch = [timed(partial(encoder.encode, texts, language)) for _ in range(repeats)]
        yield rate("text", f"batches of {len(texts)}, {language}", [len(texts)] * repeats, batch)


class EncodesImages(Protocol):
    """The part of a backbone or an image encoder that is measured."""

    @property
    def name(self) -> str:
        """Its name in the table."""
        ...

    def preprocess(self, image: Image) -> Pixels:
        """An opened image as pixels for `features`."""
        ...

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F) features of N preprocessed images."""
        ...


def measure_images(settings: Settings) -> Iterator[Measurement]:
    """Images per second: every built-in backbone, or the one of the chosen model."""
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
    """Decoding alone, which is the baseline, and decoding with encoding."""
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
    """The ten best of 10,000 and of 100,000 vectors, compared with brute force in numpy."""
    dimension = models.load(settings.model).image.dimension
    for count in SIZES:
        yield from time_search(synthetic.vectors(count, dimension), settings.repeats)


def time_search(vectors: Vectors, repeats: int) -> Iterator[Measurement]:
    """The vector index of `capsearch query`, compared with brute force in numpy."""
    index = nearest.build(vectors, lambda: nearest.coded(vectors))
    queries = cycle(synthetic.vectors(repeats + 1, vectors.shape[1], seed=1))
    actions: dict[str, Callable[[], object]] = {
        "numpy": lambda: brute_force(vectors, next(queries), TOP),
        "index": lambda: search_rows(index, vectors, next(queries)),
    }
    taken = rounds(actions, repeats)
    baseline = latency("search", f"{len(vectors):,} vectors: numpy", taken["numpy"])
    yield baseline
    name = f"{len(vectors):,} vectors: vector index"
    yield latency("search", name, taken["index"]).against(baseline)


def search_rows(index: nearest.Nearest, vectors: Vectors, query: Vectors) -> tuple[int, ...]:
    """Candidates and their exact scores, as the embedded backend searches."""
    slots = index.top(query, MIN_DEPTH)
    scores = nearest.exact_scores(query, vectors, slots)
    return tuple(slots[np.argsort(-scores)[:TOP]].tolist())


def brute_force(vectors: Vectors, query: Vectors, count: int) -> tuple[int, ...]:
    """The rows with the `count` highest inner products, best first."""
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
        shown = " ".join(command[2:]).replace(CAPSEARCH, "capsearch")
        raise CapsearchError(f"`{shown}` failed: {done.stderr.strip()[-500:]}")


PARTS: Mapping[str, Callable[[Settings], Iterator[Measurement]]] = {
    "command": measure_command,
    "text": measure_text,
    "images": measure_images,
    "search": measure_search,
}


def measure(parts: Sequence[str], settings: Settings) -> Iterator[Measurement]:
    """Measure these parts, in the order of PARTS; all of them if none is given."""
    for name, part in PARTS.items():
        if name in parts or not parts:
            yield from part(settings)
