"""Text encoders taught by a teacher's text tower, also on sentences without images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.datasets.captioned import open_text
from capsearch.encoders.datasets.text_cache import EncodesSentences
from capsearch.encoders.languages import detect, simplify
from capsearch.encoders.training.fit.corpus import NO_IMAGE, LanguageCaptions
from capsearch.engine.errors import TrainingProblem


def read_sentences(files: Iterable[Path], languages: Sequence[str]) -> Mapping[str, list[str]]:
    """Sentences by language, one a line; those of other languages are left out.

    TrainingProblem for a file without any.
    """
    found: dict[str, list[str]] = {language: [] for language in languages}
    for file in files:
        before = sum(map(len, found.values()))
        with open_text(file) as lines:
            for line in filter(None, map(str.strip, lines)):
                language = detect(line)
                if language in found:
                    found[language].append(simplify(line) if language == "zh" else line)
        if sum(map(len, found.values())) == before:
            raise TrainingProblem(
                f"no sentence in {', '.join(languages)} in {file}: the teacher reads no others; "
                "write one a line"
            )
    return found


def taught(
    captions: LanguageCaptions, texts: Sequence[str], teacher: EncodesSentences
) -> LanguageCaptions:
    """Captions with the teacher's text vectors of them; `texts` are theirs, in order."""
    if not texts:
        return captions
    return replace(captions, teacher=teacher.encode(texts).astype(np.float16, copy=False))


@dataclass(frozen=True)
class Distillation:
    """Cosine distances of text vectors to the teacher's, for captions of every language."""

    captions: Mapping[str, LanguageCaptions]
    batch_size: int

    def distances(self, language: str, rows: NDArray[np.int64], texts: Tensor) -> list[Tensor]:
        """(N,) 1 - cosine of these captions' unit vectors, or nothing without a teacher."""
        teacher = self.captions[language].teacher
        if teacher is None:
            return []
        targets = torch.from_numpy(teacher[rows].astype(np.float32))
        return [1.0 - (texts * targets).sum(1)]

    def without_image(self, rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """For each language a batch of the sentences without images that a teacher has read."""
        for language, captions in self.captions.items():
            if captions.teacher is None:
                continue
            rows = np.flatnonzero(captions.image_rows == NO_IMAGE)
            if len(rows):
                yield language, rng.choice(rows, min(self.batch_size, len(rows)), replace=False)
