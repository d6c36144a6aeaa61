"""`capsearch train text --teacher`: W2VV text encoders in the space of a CLIP-like model.

The teacher's image tower is the backbone, without a projection. Where the teacher reads a
language, its text vectors of the captions are targets too, and sentences without images help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from capsearch.encoders import models
from capsearch.encoders.clip.towers import ClipTextEncoder
from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.datasets.features import FeatureCache
from capsearch.encoders.datasets.text_cache import CachedSentenceEncoder
from capsearch.encoders.training.fit.corpus import Corpus, texts_of, with_names
from capsearch.encoders.training.fit.distillation import taught
from capsearch.encoders.training.runs.run import Listener, TrainingRun
from capsearch.engine.errors import TrainingProblem


def find_teacher(run: TrainingRun) -> ClipTextEncoder | None:
    """The text encoder of the run's teacher; TrainingProblem for another kind of model."""
    if run.teacher is None:
        if run.sentences:
            raise TrainingProblem("sentences without images need a --teacher that reads them")
        return None
    if run.variant != "shared":
        raise TrainingProblem(f"--variant {run.variant} has no teacher; leave it out")
    text = models.load(run.teacher).text
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
