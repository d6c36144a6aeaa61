"""Files with flipped, cut, repeated and inserted bytes: no crash, no hang, no memory without end.

The default run takes a few hundred, the slow one 10,000 images and 2,000 captions files (issue 11).
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from image_bytes import saved
from PIL import Image

from capsearch.encoders.images.open import opened
from capsearch.encoders.images.preprocess import decode_opened, squash
from capsearch.engine.errors import InvalidCaptions, InvalidImage
from capsearch.indexer.sources.captions import read_captions, read_sidecar
from capsearch.indexer.sources.metadata import read_metadata

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of broken EXIF
SLOWEST_S = 10.0
MEMORY_MB = 1500  # of the whole test process, torch and all not counted: growth
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")


def photo() -> Image.Image:
    rows = np.random.default_rng(0).integers(0, 256, (12, 16, 3)).astype(np.uint8)
    return Image.fromarray(rows).resize((160, 120), Image.Resampling.BICUBIC)


def image_files() -> list[bytes]:
    header = Image.Exif()
    header[0x010E] = "a red car on the road"
    plain = [saved(photo(), kind) for kind in FORMATS]
    return [*plain, saved(photo(), "JPEG", exif=header), saved(photo().convert("P"), "PNG")]


def captions_files() -> dict[str, bytes]:
    coco = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"image_id": 1, "caption": "一只猫"}],
    }
    table = "file,caption,language\na.jpg,a red car,en\nb.jpg,赤い車,ja\n"
    return {
        "coco.json": json.dumps(coco).encode(),
        "table.csv": table.encode(),
        "table.tsv": table.replace(",", "\t").encode("utf-16"),
        "a.txt": "a red car\n红色的车\n".encode("gb18030"),
        "a.json": json.dumps({"captions": ["a", {"text": "車"}]}).encode(),
    }


def mutations(data: bytes, random: np.random.Generator) -> bytes:
    """One to eight random changes."""
    content = bytearray(data)
    for _ in range(int(random.integers(1, 9))):
        at = int(random.integers(0, max(len(content), 1)))
        length = int(random.integers(1, 40))
        match int(random.integers(0, 5)):
            case 0 if content:
                content[at] = int(random.integers(0, 256))
            case 1:
                del content[at : at + length]
            case 2:
                content[at:at] = content[at : at + length]
            case 3:
                content[at:at] = random.bytes(length)
            case _ if random.random() < 0.2:
                del content[at:]
    return bytes(content)


def mutated(files: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    random = np.random.default_rng(seed)
    for number in range(count):
        yield mutations(files[number % len(files)], random)


def slowest(action: Callable[[bytes], object], contents: Iterator[bytes]) -> float:
    longest = 0.0
    for content in contents:
        started = perf_counter()
        action(content)
        longest = max(longest, perf_counter() - started)
    return longest


def memory_mb() -> float:
    unit = 1024 if sys.platform == "linux" else 1024 * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def open_image(content: bytes) -> None:
    with suppress(InvalidImage), opened(content) as image:
        read_metadata(image)
        decode_opened(image, partial(squash, size=64))


def check_images(count: int, seed: int) -> None:
    before = memory_mb()
    assert slowest(open_image, mutated(image_files(), count, seed)) < SLOWEST_S
    assert memory_mb() - before < MEMORY_MB


def check_captions(folder: Path, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    files = list(captions_files().items())
    for number in range(count):
        name, content = files[number % len(files)]
        path = folder / name
        path.write_bytes(mutations(content, random))
        read = read_sidecar if name.startswith("a.") else read_captions
        started = perf_counter()
        with suppress(InvalidCaptions):
            read(path)
        assert perf_counter() - started < SLOWEST_S


def test_some_mutated_images_are_opened_or_refused() -> None:
    check_images(300, seed=1)


def test_some_mutated_captions_files_are_read_or_refused(tmp_path: Path) -> None:
    check_captions(tmp_path, 300, seed=1)


@pytest.mark.slow
def test_ten_thousand_mutated_images_are_opened_or_refused() -> None:
    check_images(10_000, seed=2)


@pytest.mark.slow
def test_two_thousand_mutated_captions_files_are_read_or_refused(tmp_path: Path) -> None:
    check_captions(tmp_path, 2_000, seed=2)
