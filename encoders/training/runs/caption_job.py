"""What the stages of a captioner's training share: the run, its data, its captions, its search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capsearch.encoders.captioners.search import Beam
from capsearch.encoders.captioners.vocabulary import CaptionVocabulary
from capsearch.encoders.image import ImageNetwork
from capsearch.encoders.taggers import BuiltInTagger
from capsearch.encoders.training.fit.caption_corpus import (
    EncodedCaptions,
    TokenisedCaptions,
    encode,
    main_captions,
)
from capsearch.encoders.training.fit.feature_maps import EncodedImages
from capsearch.encoders.training.nn.caption_decoders import CaptionConfig
from capsearch.encoders.training.runs.run import Listener, TrainingRun
from capsearch.encoders.training.runs.schemes import Stage

_CANDIDATES = 10  # captions of each image that the match chooses from


@dataclass(frozen=True, slots=True)
class CaptionRun:
    """A training run of a captioner. `tagger`: the model whose tags are an input; "" for none.

    `initial`: a captioner that is trained on; "" for a new one. It has its own words and decoder.
    """

    run: TrainingRun
    config: CaptionConfig
    scheme: str = "sequential"
    tagger: str = ""
    beam: int = 3
    initial: str = ""


@dataclass(frozen=True, slots=True)
class CaptionJob:
    """A run with its data."""

    captioner: CaptionRun
    backbone: ImageNetwork
    tagger: BuiltInTagger | None
    train: EncodedImages
    validation: EncodedImages
    captions: Mapping[str, TokenisedCaptions]
    vocabulary: CaptionVocabulary
    listener: Listener


def encoded(job: CaptionJob, stage: Stage) -> Mapping[str, EncodedCaptions]:
    """A stage's captions by language, without those that have an unknown word."""
    return {
        language: encode(
            captions_of(job, stage, language), job.vocabulary, language, len(job.train)
        )
        for language in stage.languages
    }


def captions_of(job: CaptionJob, stage: Stage, language: str) -> TokenisedCaptions:
    """The captions that a stage learns from."""
    captions = job.captions[language]
    return main_captions(captions) if stage.main else captions


def beam_of(captioner: CaptionRun) -> Beam:
    """The search of the finished model, which also writes the captions that are picked."""
    return Beam(captioner.beam, captioner.config.max_words, candidates=_CANDIDATES)
