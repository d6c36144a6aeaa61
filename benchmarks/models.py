"""Models beside each other: images a second, milliseconds a query, memory, on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from capsearch.benchmarks import synthetic
from capsearch.benchmarks.speed import BATCH, time_images
from capsearch.benchmarks.timing import latency, timed
from capsearch.encoders import models
from capsearch.engine.protocols import TextEncoder


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """What one model does on this machine, in a process of its own."""

    name: str
    images_per_second: float  # decoded and encoded, in batches
    query_ms: Mapping[str, float]  # p50 of encoding one query, by language
    memory_mb: int | None  # at most, with both encoders in use; None where unknown


def measure_models(names: Sequence[str], repeats: int) -> Iterator[ModelSpeed]:
    """The built-in model first, then each of `names`, one after the other."""
    for name in dict.fromkeys((models.DEFAULT_MODEL, *names)):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            yield pool.submit(measure_model, name, repeats).result()


def measure_model(name: str, repeats: int) -> ModelSpeed:
    """Opens a model and measures it in this process."""
    model = models.load(name)
    *_, images = time_images(model.image, synthetic.images(BATCH), repeats)
    queries = {
        language: _query_ms(model.text, language)
        for language in synthetic.WORDS
        if language in model.text.languages
    }
    return ModelSpeed(model.name, images.p50, queries, _peak_memory_mb())


def _query_ms(encoder: TextEncoder, language: str) -> float:
    texts = synthetic.sentences(language)
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
