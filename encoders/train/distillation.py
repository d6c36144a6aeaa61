"""Text encoders taught by a teacher's text tower, also on sentences without images.

`capsearch train text --teacher`: W2VV text encoders in the space of a CLIP-like model.

The teacher's image tower is the backbone, without a projection. Where the teacher reads a
language, its text vectors of the captions are targets too, and sentences without images help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.features import CachedSentenceEncoder, EncodesSentences, FeatureCache
from capsearch.encoders.data.layouts import open_text
from capsearch.encoders.models import registry
from capsearch.encoders.models.clip import ClipTextEncoder
from capsearch.encoders.text.languages import detect, simplify
from capsearch.encoders.train.corpus import NO_IMAGE, Corpus, LanguageCaptions, texts_of, with_names
from capsearch.encoders.train.run import Listener, TrainingRun
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


def find_teacher(run: TrainingRun) -> ClipTextEncoder | None:
    """The text encoder of the run's teacher; TrainingProblem for another kind of model."""
    if run.teacher is None:
        if run.sentences:
            raise TrainingProblem("sentences without images need a --teacher that reads them")
        return None
    if run.variant != "shared":
        raise TrainingProblem(f"--variant {run.variant} has no teacher; leave it out")
    text = registry.load(run.teacher).text
    if not isinstance(text, ClipTextEncoder):
        raise TrainingProblem(
            f"{run.teacher} is no CLIP-like model; a teacher is open_clip:MODEL or its export"
        )
    return text


def teach(
    run: TrainingRun,
    teacher: ClipTextEncoder,
    corpus: Corpus,
    train: CaptionDataset,
    without_image: Mapping[str, Sequence[str]],
    listener: Listener,
) -> Corpus:
    """The corpus with the teacher's text vectors of all captions in its languages."""
    cached = CachedSentenceEncoder(
        teacher.tower,
        f"teacher {teacher.digest}",
        FeatureCache(run.cache),
        listener.report("teacher's text vectors"),
    )
    encoded = {
        language: taught(
            captions,
            _texts(train, language, corpus, without_image.get(language, ())),
            cached,
        )
        if language in teacher.reads
        else captions
        for language, captions in corpus.train.items()
    }
    return replace(corpus, train=encoded)


def _texts(
    train: CaptionDataset, language: str, corpus: Corpus, without_image: Sequence[str]
) -> list[str]:
    """The training texts of a language in the order of the corpus."""
    texts, rows = texts_of(train, language)
    return with_names(train, language, corpus.shown, [*texts, *without_image], rows)[0]
