"""Speed of commands, encoders and search, each with a baseline measured in the same run.

Committed speed figures, and which ratios have become worse since.

Seconds differ between machines; a ratio to a baseline measured in the same run hardly does.

Models beside each other: images a second, milliseconds a query, memory, on this machine.
"""

from __future__ import annotations

import json
import os
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
from time import process_time
from typing import TYPE_CHECKING, Protocol

import numpy as np

from capsearch.benchmarks import indexing, scale, timing
from capsearch.benchmarks import scale as peers
from capsearch.benchmarks.timing import (
    CAPSEARCH,
    PYTHON,
    Measurement,
    latency,
    query_command,
    rate,
    rounds,
    run,
    timed,
)
from capsearch.encoders.images.preprocess import decode
from capsearch.encoders.models import registry
from capsearch.engine.errors import DataProblem
from capsearch.engine.protocols import Enricher, TextEncoder
from capsearch.engine.records import ImageFeatures, Pixels, Vectors
from capsearch.indexer.sqlite import nearest

if TYPE_CHECKING:
    from PIL.Image import Image


ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
BATCH = 32
READ_MB = 32  # size of the built-in text encoder's weights in memory
SIZES = (10_000, 100_000)


@dataclass(frozen=True, slots=True)
class Settings:
    """The model to measure (None: the built-in one), and how often to repeat a measurement."""

    model: str | None = None
    repeats: int = 15
    sizes: tuple[int, ...] = scale.SIZES  # images of the collections of `scale`
    report: Callable[[str], None] = lambda _: None


def measure_command(settings: Settings) -> Iterator[Measurement]:
    """`capsearch query` in a new process, compared with starting Python and importing torch."""
    with TemporaryDirectory() as folder:
        index = _small_index(Path(folder), settings.model)
        actions = {"python -c pass": partial(run, [*PYTHON, "pass"])}
        if find_spec("torch") is not None:
            actions["python -c 'import torch'"] = partial(run, [*PYTHON, "import torch"])
        for language in timing.WORDS:
            actions[f"capsearch query, {language}"] = partial(run, query_command(index, language))
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
    return tuple(time_text(registry.load(settings.model).text, settings.repeats))


def _pin() -> None:
    if sys.platform == "linux":  # elsewhere only ONE_THREAD limits the libraries
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def time_text(encoder: TextEncoder, repeats: int) -> Iterator[Measurement]:
    """Latency of one query, and queries per second in batches, for each language.

    Encoding a query reads every weight once, so the baseline is reading as many bytes.
    """
    memory = np.ones(READ_MB << 18, np.float32)
    for language in (one for one in timing.WORDS if one in encoder.languages):
        texts = timing.sentences(language)
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
        yield from time_images(encoder, timing.synthetic_images(BATCH), settings.repeats)


def _image_encoders(model: str | None) -> Iterator[EncodesImages]:
    if model is not None:
        yield registry.load(model).image
        return
    for summary in registry.available():
        if summary.built_in and summary.kind == "backbone":
            yield registry.load_backbone(summary.name)


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


def measure_describe(settings: Settings) -> Iterator[Measurement]:
    """Tags and captions of a batch of images, compared with the pass of their backbone."""
    model = registry.load(settings.model)
    pixels = [decode(one, model.image.preprocess).pixels for one in timing.synthetic_images(BATCH)]
    yield from time_describe(model.image.feature_maps, model.enricher(), pixels, settings.repeats)


def time_describe(
    feature_maps: Callable[[Sequence[Pixels]], ImageFeatures],
    enricher: Enricher,
    pixels: Sequence[Pixels],
    repeats: int,
) -> Iterator[Measurement]:
    """Latency of a batch: the backbone, then what describes its features, if there is any."""
    features = feature_maps(pixels)
    actions: dict[str, Callable[[], object]] = {"backbone": lambda: feature_maps(pixels)}
    if enricher.tagger is not None:
        actions["tags"] = partial(enricher.tagger.tag, features)
    if enricher.captioner is not None:
        languages = ", ".join(enricher.captioner.languages)
        actions[f"captions in {languages}"] = partial(enricher.captioner.caption, features)
    lines = {
        name: latency("describe", f"{len(pixels)} images: {name}", taken)
        for name, taken in rounds(actions, repeats).items()
    }
    baseline = lines.pop("backbone")
    yield baseline
    for line in lines.values():
        yield line.against(baseline)


def measure_search(settings: Settings) -> Iterator[Measurement]:
    """The ten best of 10,000 and of 100,000 vectors, compared with brute force in numpy."""
    dimension = registry.load(settings.model).image.dimension
    for count in SIZES:
        yield from time_search(timing.vectors(count, dimension), settings.repeats)


def time_search(vectors: Vectors, repeats: int) -> Iterator[Measurement]:
    """The vector index of `capsearch query`, compared with brute force in numpy."""
    plain = peers.numpy_search(vectors)
    ours = peers.codes_search(nearest.build(vectors, lambda: nearest.coded(vectors)), vectors)
    queries = cycle(timing.vectors(repeats + 1, vectors.shape[1], seed=1))
    actions: dict[str, Callable[[], object]] = {
        "numpy": lambda: plain(next(queries)),
        "index": lambda: ours(next(queries)),
    }
    # CPU time: with both cores busy, a matrix product by several threads waits for the slowest.
    taken = rounds(actions, repeats, clock=process_time)
    baseline = latency("search", f"{len(vectors):,} vectors: numpy, CPU time", taken["numpy"])
    yield baseline
    name = f"{len(vectors):,} vectors: vector index, CPU time"
    yield latency("search", name, taken["index"]).against(baseline)


def _small_index(folder: Path, model: str | None) -> Path:
    images, index = folder / "images", folder / "index"
    images.mkdir()
    for number, content in enumerate(timing.synthetic_images(8)):
        (images / f"{number}.jpg").write_bytes(content)
    named = ["--model", model] if model else []
    run([*CAPSEARCH, "index", str(images), "--index", str(index), *named])
    return index


def measure_scale(settings: Settings) -> Iterator[Measurement]:
    """Large collections; they take ten gigabytes of the user's cache directory."""
    return scale.measure(settings.model, settings.sizes, settings.report)


def measure_indexing(settings: Settings) -> Iterator[Measurement]:
    """The parts of indexing and the whole, compared with a CLIP tower in torch."""
    return indexing.measure(settings.model, settings.repeats)


PARTS: Mapping[str, Callable[[Settings], Iterator[Measurement]]] = {
    "command": measure_command,
    "text": measure_text,
    "images": measure_images,
    "describe": measure_describe,
    "search": measure_search,
    "indexing": measure_indexing,
    "scale": measure_scale,
}
ON_REQUEST = ("scale",)  # takes half an hour when it is first run


def measure(parts: Sequence[str], settings: Settings) -> Iterator[Measurement]:
    """Measure these parts, in the order of PARTS; if none is given, all but ON_REQUEST."""
    for name, part in PARTS.items():
        if name in parts or not (parts or name in ON_REQUEST):
            yield from part(settings)


FIGURES = Path(__file__).with_name("figures.json")
MAX_LOSS = 0.25
_LOWER_IS_BETTER = ("ms", "s")


@dataclass(frozen=True, slots=True)
class Loss:
    """A ratio that has fallen: what was measured, beside what, then and now."""

    name: str
    beside: str
    before: float
    now: float

    def __str__(self) -> str:
        return f"{self.name}: {self.now:.3g} x {self.beside}, was {self.before:.3g} x"


def losses(
    measured: Sequence[Measurement], committed: Mapping[tuple[str, str], float]
) -> tuple[Loss, ...]:
    """The ratios that fell by more than MAX_LOSS; DataProblem if none can be compared."""
    compared = [*_compared(measured, committed)]
    if not compared:
        raise DataProblem(
            "none of these measurements has a committed figure; measure the part `search`"
        )
    return tuple(
        Loss(one.name, one.beside or "", before, now)
        for one, before, now in compared
        if (before / now if one.unit in _LOWER_IS_BETTER else now / before) < 1 - MAX_LOSS
    )


def committed(path: Path = FIGURES) -> Mapping[tuple[str, str], float]:
    """Ratios by part and name; DataProblem if the file is none of `bench speed --json`."""
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))["measurements"]
        return {(one["part"], one["name"]): one["ratio"] for one in lines if one["ratio"]}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataProblem(
            f"{path} does not hold speed figures ({problem}); make them with "
            "`capsearch bench speed --json`"
        ) from problem


def _compared(
    measured: Sequence[Measurement], committed: Mapping[tuple[str, str], float]
) -> Iterator[tuple[Measurement, float, float]]:
    for one in measured:
        before = committed.get((one.part, one.name))
        if before is not None and one.ratio is not None:
            yield one, before, one.ratio


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """What one model does on this machine, in a process of its own."""

    name: str
    images_per_second: float  # decoded and encoded, in batches
    query_ms: Mapping[str, float]  # p50 of encoding one query, by language
    memory_mb: int | None  # at most, with both encoders in use; None where unknown


def measure_models(names: Sequence[str], repeats: int) -> Iterator[ModelSpeed]:
    """The built-in model first, then each of `names`, one after the other."""
    for name in dict.fromkeys((registry.DEFAULT_MODEL, *names)):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            yield pool.submit(measure_model, name, repeats).result()


def measure_model(name: str, repeats: int) -> ModelSpeed:
    """Opens a model and measures it in this process."""
    model = registry.load(name)
    *_, images = time_images(model.image, timing.synthetic_images(BATCH), repeats)
    queries = {
        language: _query_ms(model.text, language)
        for language in timing.WORDS
        if language in model.text.languages
    }
    return ModelSpeed(model.name, images.p50, queries, _peak_memory_mb())


def _query_ms(encoder: TextEncoder, language: str) -> float:
    texts = timing.sentences(language)
    for text in texts[:4]:
        encoder.encode([text], language)
    seconds = [timed(lambda text=text: encoder.encode([text], language)) for text in texts[4:]]  # type: ignore[misc]
    return latency("text", language, seconds).p50


def _peak_memory_mb() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> (20 if sys.platform == "darwin" else 10)
