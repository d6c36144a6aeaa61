"""Synthetic sentences, images and vectors for speed measurements."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from itertools import product

import numpy as np

from capsearch.engine.records import Vectors
from capsearch.engine.vectors import unit

IMAGE_SIZE = (640, 480)  # pixels; a common size on the web
# 6 x 6 x 6 sentences in each language, so that no measurement uses one twice.
WORDS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "en": (
        "{} {} {}",
        ("A black cat", "Two children", "An old man", "A woman in red", "A dog", "Some birds"),
        ("sleeping", "looking around", "waiting", "playing", "eating", "walking slowly"),
        ("on the beach", "near a train", "in a kitchen", "under a tree", "at night", "in snow"),
    ),
    "zh": (
        "{0}在{2}{1}",
        ("一只黑猫", "两个孩子", "一位老人", "穿红衣服的女人", "一条狗", "几只鸟"),
        ("睡觉", "张望", "等待", "玩耍", "吃东西", "慢慢地走"),
        ("海滩上", "火车旁边", "厨房里", "树下", "夜晚的街道上", "雪地里"),
    ),
    "ja": (
        "{0}が{2}{1}",
        ("黒い猫", "二人の子供", "老人", "赤い服の女性", "犬", "数羽の鳥"),
        (
            "眠っている",
            "辺りを見ている",
            "待っている",
            "遊んでいる",
            "食べている",
            "ゆっくり歩いている",
        ),
        ("浜辺で", "電車のそばで", "台所で", "木の下で", "夜の通りで", "雪の中で"),
    ),
}


def sentences(language: str) -> tuple[str, ...]:
    """216 different sentences in a language of WORDS."""
    pattern, *parts = WORDS[language]
    return tuple(pattern.format(*words) for words in product(*parts))


def images(count: int, seed: int = 0, size: tuple[int, int] = IMAGE_SIZE) -> tuple[bytes, ...]:
    """JPEGs of smooth random shapes, with about the file size of real images."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        coarse = generator.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        file = BytesIO()
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG")
        files.append(file.getvalue())
    return tuple(files)


def vectors(count: int, dimension: int, seed: int = 0) -> Vectors:
    """(count, dimension) random vectors with unit norm."""
    rows = np.random.default_rng(seed).standard_normal((count, dimension), np.float32)
    return unit(rows)
