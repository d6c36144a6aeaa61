"""Speed of commands, encoders, search and indexing, each beside a baseline of the same run.

Seconds differ between machines; a ratio to a baseline measured in the same run hardly does. The
committed ratios are in figures.json; `losses` has those that have become worse since.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.benchmarks import scale, timing
from capsearch.benchmarks.settings import SpeedRun
from capsearch.benchmarks.timing import (
    CAPSEARCH,
    PYTHON,
    Measurement,
    alone,
    latency,
    query_command,
    rate,
    rounds,
    run,
    timed,
)
from capsearch.encoders.images.open import MAX_PIXELS
from capsearch.encoders.images.preprocess import decode
from capsearch.encoders.models import registry
from capsearch.encoders.models.image import TUNED_AFTER, ImageNetwork
from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import DataProblem
from capsearch.engine.protocols import Enricher, ImageEncoder, TextEncoder
from capsearch.engine.records import ImageFeatures, Pixels, Vectors
from capsearch.indexer import pipeline
from capsearch.indexer.prepare import Prepared, prepare_all
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite import nearest
from capsearch.indexer.sqlite.collection import Collection

if TYPE_CHECKING:
    from PIL.Image import Image

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
BATCH = 32
READ_MB = 32  # size of the built-in text encoder's weights in memory
ONE_QUERY = "one query, "  # of a measurement's name, before the language
SIZES = (10_000, 100_000)
# (width, height) of the files, and how many of them: web images, and photos of 12 megapixels.
INDEXED = (((640, 480), 96), ((4000, 3000), 12))
PEER_BATCHES, PEER_SIZE = (1, 8, 32), 224
_INDEXING_REPEATS = 3


def measure_command(options: SpeedRun) -> Iterator[Measurement]:
    """`capsearch query` in a new process, compared with starting Python and importing torch."""
    with TemporaryDirectory() as folder:
        index = _small_index(Path(folder), options.model)
        actions = {"python -c pass": partial(run, [*PYTHON, "pass"])}
        if find_spec("torch") is not None:
            actions["python -c 'import torch'"] = partial(run, [*PYTHON, "import torch"])
        for language in timing.WORDS:
            actions[f"capsearch query, {language}"] = partial(run, query_command(index, language))
        taken = rounds(actions, options.repeats)
    lines = {name: latency("command", name, seconds) for name, seconds in taken.items()}
    baseline = lines.get("python -c 'import torch'", lines["python -c pass"])
    for name, line in lines.items():
        yield line if name == baseline.name else line.against(baseline)


def measure_text(options: SpeedRun) -> Iterator[Measurement]:
    """Encoding queries, in a separate process with one thread."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # read only when a process loads its numeric libraries
    try:
        yield from alone(_text_on_one_core, options)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _text_on_one_core(options: SpeedRun) -> tuple[Measurement, ...]:
    if sys.platform == "linux":  # elsewhere only ONE_THREAD limits the libraries
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return tuple(time_text(registry.load(options.model).text, options.repeats))


def time_text(encoder: TextEncoder, repeats: int) -> Iterator[Measurement]:
    """Latency of one query, and queries per second in batches, for each language.

    Encoding a query reads every weight once, so the baseline is reading as many bytes.
    """
    memory = np.ones(READ_MB << 18, np.float32)
    for language in (lang for lang in timing.WORDS if lang in encoder.languages):
        texts = timing.sentences(language)
        warm, fresh = texts[:16], texts[16:]
        for text in warm:
            encoder.encode([text], language)
        single = [timed(partial(encoder.encode, [text], language)) for text in fresh]
        reading = [timed(memory.sum) for _ in fresh]
        baseline = latency("text", f"reading {READ_MB} MB, {language}", reading)
        yield baseline
        yield latency("text", f"{ONE_QUERY}{language}", single).against(baseline)
        batch = [timed(partial(encoder.encode, texts, language)) for _ in range(repeats)]
        yield rate("text", f"batches of {len(texts)}, {language}", [len(texts)] * repeats, batch)


def measure_images(options: SpeedRun) -> Iterator[Measurement]:
    """Images per second: every built-in backbone, or the one of the chosen model."""
    for encoder in _image_encoders(options.model):
        yield from time_images(encoder, timing.synthetic_images(BATCH), options.repeats)


def _image_encoders(model: str | None) -> Iterator[ImageEncoder | ImageNetwork]:
    if model is not None:
        yield registry.load(model).image
        return
    for summary in registry.available():
        if summary.built_in and summary.kind == "backbone":
            yield registry.load_backbone(summary.name)


def time_images(
    encoder: ImageEncoder | ImageNetwork, images: Sequence[bytes], repeats: int
) -> Iterator[Measurement]:
    """Decoding alone, which is the baseline, and decoding with encoding."""
    with ThreadPoolExecutor() as pool:

        def pixels() -> list[Pixels]:
            return list(pool.map(lambda file: decode(file, encoder.preprocess).pixels, images))

        taken = rounds({"decode": pixels, "all": lambda: encoder.features(pixels())}, repeats)
    counts = [len(images)] * repeats
    decoding = rate("images", f"{encoder.name}: decoding alone", counts, taken["decode"])
    yield decoding
    yield rate("images", f"{encoder.name}: decoded and encoded", counts, taken["all"]).against(
        decoding
    )


def measure_describe(options: SpeedRun) -> Iterator[Measurement]:
    """Tags and captions of a batch of images, compared with the pass of their backbone."""
    model = registry.load(options.model)
    pixels = [
        decode(file, model.image.preprocess).pixels for file in timing.synthetic_images(BATCH)
    ]
    yield from time_describe(model.image.feature_maps, model.enricher(), pixels, options.repeats)


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


def measure_search(options: SpeedRun) -> Iterator[Measurement]:
    """The ten best of 10,000 and of 100,000 vectors, compared with brute force in numpy."""
    dimension = registry.load(options.model).image.dimension
    for count in SIZES:
        yield from time_search(timing.vectors(count, dimension), options.repeats)


def time_search(vectors: Vectors, repeats: int) -> Iterator[Measurement]:
    """The vector index of `capsearch query`, compared with brute force in numpy."""
    plain = scale.numpy_search(vectors)
    ours = scale.codes_search(nearest.build(vectors, lambda: nearest.coded(vectors)), vectors)
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


@dataclass(frozen=True)
class Instant:
    """An image encoder that neither decodes nor encodes: what is left is reading and storing."""

    encoder: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def preprocess(self, image: Image) -> Pixels:
        """No pixels."""
        return np.zeros((1, 1, 3), np.uint8)

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """Zeros."""
        return np.zeros((len(pixels), self.encoder.feature_dimension), np.float32)


def measure_indexing(options: SpeedRun) -> Iterator[Measurement]:
    """The parts of indexing and the whole, compared with what CLIP tools such as rclip do.

    These open images with Pillow and encode them by ViT-B/32 in torch, batch by batch.
    """
    model, repeats = registry.load(options.model), min(options.repeats, _INDEXING_REPEATS)
    for size, count in INDEXED:
        with TemporaryDirectory() as folder:
            files = written(Path(folder), size, count)
            yield from time_indexing(model, files, f"{size[0]} x {size[1]}", repeats)


def written(folder: Path, size: tuple[int, int], count: int) -> list[ImageFile]:
    """Synthetic JPEG files."""
    files = []
    for number, content in enumerate(timing.synthetic_images(count, size=size)):
        path = folder / f"{number}.jpg"
        path.write_bytes(content)
        files.append(ImageFile(str(path), 1, len(content)))
    return files


def time_indexing(
    model: Model, files: Sequence[ImageFile], label: str, repeats: int
) -> Iterator[Measurement]:
    """Rates of the parts by themselves, of the whole, and of the peer if torch is there."""
    pixels = _decoded(model, files)
    while len(pixels) <= TUNED_AFTER:
        pixels += pixels
    model.image.features(pixels)  # so that the fastest way is known
    pixels = pixels[: len(files)]
    instant = replace(model, image=Instant(model.image))
    actions = {
        "decoded": lambda: _decoded(model, files),
        "encoded": lambda: model.image.features(pixels),
        "read and stored": lambda: index(instant, files),
        "indexed": lambda: index(model, files),
    }
    taken = rounds(actions, repeats)
    lines = {
        name: rate("indexing", f"{label}: {name}, {model.name}", [len(files)] * repeats, seconds)
        for name, seconds in taken.items()
    }
    together = [sum(parts) for parts in zip(taken["decoded"], taken["encoded"], strict=True)]
    both = rate("indexing", f"{label}: decoded, then encoded", [len(files)] * repeats, together)
    yield from (lines[name] for name in ("decoded", "encoded", "read and stored"))
    yield both
    yield lines["indexed"].against(both)
    if find_spec("torch") is not None:
        peer = time_peer(files, label)
        yield peer
        yield replace(lines["indexed"], name=f"{lines['indexed'].name}, to the peer").against(peer)


def index(model: Model, files: Sequence[ImageFile]) -> None:
    """Indexes the folder of the files anew."""
    with TemporaryDirectory() as folder, Collection.create(Path(folder), model) as collection:
        pipeline.index(collection, [Path(files[0].path).parent])


def time_peer(files: Sequence[ImageFile], label: str) -> Measurement:
    """The rate of the batch size that is best for it."""
    network, paths = vit_b32(), [Path(file.path) for file in files]
    ways = {str(batch): partial(encode_files, network, paths, batch) for batch in PEER_BATCHES}
    encode_files(network, paths[:1], 1)  # allocates
    taken = rounds(ways, repeats=1, warm_up=0)
    batch, [seconds] = min(taken.items(), key=lambda item: item[1][0])
    name = f"{label}: ViT-B/32 in torch, batches of {batch}"
    return rate("indexing", name, [len(files)], [seconds])


def vit_b32() -> Callable[[Vectors], object]:
    """The image tower that CLIP tools use, in plain torch: 4.4 GMAC an image.

    Its weights are random, which takes the same time as trained ones.
    """
    import torch
    from torch import nn

    width, patch, tokens = 768, 32, (PEER_SIZE // 32) ** 2 + 1
    patches = nn.Conv2d(3, width, patch, patch, bias=False)
    positions = torch.randn(1, tokens, width) * width**-0.5
    layer = nn.TransformerEncoderLayer(
        width, 12, 4 * width, 0.0, nn.functional.gelu, batch_first=True, norm_first=True
    )
    layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).eval()
    project = nn.Linear(width, 512, bias=False)

    def network(images: Vectors) -> object:
        with torch.inference_mode():
            cells = patches(torch.from_numpy(images)).flatten(2).transpose(1, 2)  # (N, 49, 768)
            classes = cells.new_zeros(len(images), 1, width)
            return project(layers(torch.cat([classes, cells], dim=1) + positions)[:, 0])

    return network


def encode_files(network: Callable[[Vectors], object], paths: Sequence[Path], batch: int) -> None:
    """Opens, resizes and encodes files one batch after another, as such tools do."""
    for start in range(0, len(paths), batch):
        network(np.stack([_peer_pixels(path) for path in paths[start : start + batch]]))


def _peer_pixels(path: Path) -> Vectors:
    """(3, 224, 224), the centre of an image as CLIP crops it."""
    from PIL import Image

    with Image.open(path) as image:
        scale = PEER_SIZE / min(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        small = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
    left, top = (small.width - PEER_SIZE) // 2, (small.height - PEER_SIZE) // 2
    crop = np.asarray(small.crop((left, top, left + PEER_SIZE, top + PEER_SIZE)), np.float32)
    return np.ascontiguousarray((crop / 127.5 - 1.0).transpose(2, 0, 1))


def _decoded(model: Model, files: Sequence[ImageFile]) -> list[Pixels]:
    outcomes = prepare_all(files, (), model.image.preprocess, MAX_PIXELS, ahead=len(files))
    prepared = [outcome.decoded for outcome in outcomes if isinstance(outcome, Prepared)]
    return [decoded.pixels for decoded in prepared if decoded is not None]


def measure_scale(options: SpeedRun) -> Iterator[Measurement]:
    """Large collections; they take ten gigabytes of the user's cache directory."""
    sizes = options.size or scale.SIZES
    return scale.measure(options.model, sizes, partial(print, file=sys.stderr))


PARTS: Mapping[str, Callable[[SpeedRun], Iterator[Measurement]]] = {
    "command": measure_command,
    "text": measure_text,
    "images": measure_images,
    "describe": measure_describe,
    "search": measure_search,
    "indexing": measure_indexing,
    "scale": measure_scale,
}
ON_REQUEST = ("scale",)  # takes half an hour when it is first run


def measure(options: SpeedRun) -> Iterator[Measurement]:
    """Measure the parts asked for, in the order of PARTS; if none is, all but ON_REQUEST."""
    for name, part in PARTS.items():
        if name in options.part or not (options.part or name in ON_REQUEST):
            yield from part(options)


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
        Loss(line.name, line.beside or "", before, now)
        for line, before, now in compared
        if (before / now if line.unit in _LOWER_IS_BETTER else now / before) < 1 - MAX_LOSS
    )


def committed(path: Path = FIGURES) -> Mapping[tuple[str, str], float]:
    """Ratios by part and name; DataProblem if the file is none of `bench speed --json`."""
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))["measurements"]
        return {(line["part"], line["name"]): line["ratio"] for line in lines if line["ratio"]}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataProblem(
            f"{path} does not hold speed figures ({problem}); make them with "
            "`capsearch bench speed --json`"
        ) from problem


def _compared(
    measured: Sequence[Measurement], committed: Mapping[tuple[str, str], float]
) -> Iterator[tuple[Measurement, float, float]]:
    for line in measured:
        before = committed.get((line.part, line.name))
        if before is not None and line.ratio is not None:
            yield line, before, line.ratio


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
        yield alone(measure_model, name, repeats)


def measure_model(name: str, repeats: int) -> ModelSpeed:
    """Opens a model and measures it in this process."""
    model = registry.load(name)
    *_, images = time_images(model.image, timing.synthetic_images(BATCH), repeats)
    lines = time_text(model.text, repeats=1)
    queries = {
        line.name.removeprefix(ONE_QUERY): line.p50
        for line in lines
        if line.name.startswith(ONE_QUERY)
    }
    memory = None if sys.platform == "win32" else round(timing.peak_mb())
    return ModelSpeed(model.name, images.p50, queries, memory)
