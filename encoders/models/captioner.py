"""Captioners: sentences about an image in several languages, from its feature map, in numpy.

A decoder's probabilities say how people write, so the likeliest caption is often one that suits
many images; the match prefers the one that suits this image. It is the cosine of two vectors: the
image's is its pooled feature, whitened; a caption's is the sum of its words', which were fitted so
that captions come near their images (ridge regression; a linear relative of CCA, Gong et al. 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.caption_decoders import (
    RECURRENT,
    OpensDecoder,
    TransformerDecoder,
    Weights,
    WordOutput,
)
from capsearch.encoders.models.caption_search import (
    END,
    Beam,
    CaptionVocabulary,
    Hypotheses,
    StepDecoder,
    search,
)
from capsearch.encoders.models.model_folder import Arrays
from capsearch.engine.errors import UnknownModel
from capsearch.engine.records import GENERATED, Caption, ImageFeatures, Vectors
from capsearch.engine.vectors import unit

if TYPE_CHECKING:
    from capsearch.encoders.models.tagger import BuiltInTagger


PART = "match"  # what the names of its arrays start with
WHITENING = "image_W"  # its array that must not be rounded to int8


@dataclass(frozen=True, slots=True)
class CaptionMatch:
    """Ranks the candidates of a beam search by their score + weight * their match."""

    arrays: Weights
    weight: float

    def image_vectors(self, pooled: Vectors) -> Vectors:
        """(N, F) -> (N, K), of length 1."""
        return unit(pooled @ self.arrays[WHITENING].T + self.arrays["image_b"])

    def caption_vectors(self, positions: NDArray[np.int64], language: str) -> Vectors:
        """(N, M, T) captions of a language -> (N, M, K), of length 1."""
        words = self.arrays[f"{language}_W"][positions]  # (N, M, T, K)
        words[positions == END] = 0.0
        return unit(words.sum(axis=2) + self.arrays[f"{language}_b"])

    def matches(self, images: Vectors, candidates: Hypotheses, language: str) -> Vectors:
        """(N, M) cosines of the candidates with their images."""
        return cosines(self.caption_vectors(candidates.positions, language), images)

    def best(
        self, images: Vectors, candidates: Hypotheses, language: str, beam: Beam
    ) -> Hypotheses:
        """The best candidate of each image."""
        scores = beam.scores(candidates.log_probability, candidates.length)
        scores = scores + self.weight * self.matches(images, candidates, language)
        return candidates.at(scores.argmax(axis=1)[:, None])


def cosines(captions: Vectors, others: Vectors) -> Vectors:
    """(N, M, K) captions of N images and (N, K) vectors of length 1 -> (N, M)."""
    return np.asarray((captions @ others[:, :, None])[:, :, 0], np.float32)


BATCH = 32  # images that are decoded together
WEIGHTS_FILE = "captioner.safetensors"
IMAGE = "image"  # the arrays that embed the image; others are called after their group
DECODERS: Mapping[str, OpensDecoder] = {"transformer": TransformerDecoder, **RECURRENT}


@dataclass(frozen=True, slots=True)
class Confidence:
    """log-odds that a caption names only what is there = slope * (log P / length) + intercept."""

    slope: float
    intercept: float

    def __call__(self, captions: Hypotheses) -> Vectors:
        """(N, M) probabilities."""
        mean = captions.log_probability / captions.length
        return np.asarray(1.0 / (1.0 + np.exp(-(self.slope * mean + self.intercept))), np.float32)


@dataclass(frozen=True, slots=True)
class _Part:
    """The arrays of one part of a network: those whose names start with its own."""

    arrays: Weights
    name: str

    def __getitem__(self, name: str) -> Vectors:
        return self.arrays[f"{self.name}.{name}"]

    def __contains__(self, name: object) -> bool:
        return f"{self.name}.{name}" in self.arrays


@dataclass(frozen=True)
class CaptionDecoders:
    """The decoders of a network: one for all languages, or several for one or more each.

    `match` chooses among the candidates of a search; without, the most probable one is taken.
    """

    architecture: str
    groups: Mapping[str, CaptionVocabulary]  # by the name of the decoder
    arrays: Weights
    match: CaptionMatch | None = None

    def captions(self, features: ImageFeatures, beam: Beam) -> Mapping[str, Hypotheses]:
        """The best caption of each image by language."""
        candidates = self.candidates(features, beam)
        if self.match is None:
            first = np.zeros((len(features), 1), np.int64)
            return {language: written.at(first) for language, written in candidates.items()}
        images = self.match.image_vectors(features.pooled)
        return {
            language: self.match.best(images, written, language, beam)
            for language, written in candidates.items()
        }

    def candidates(self, features: ImageFeatures, beam: Beam) -> Mapping[str, Hypotheses]:
        """The most probable captions of each image by language."""
        candidates: dict[str, Hypotheses] = {}
        for name, vocabulary in self.groups.items():
            decoder = self._decoder(name, features)
            starts = {language: vocabulary.start(language) for language in vocabulary.languages}
            outputs = {language: vocabulary.outputs(language) for language in vocabulary.languages}
            candidates |= search(decoder, len(features), starts, outputs, self._repeatable, beam)
        return candidates

    def text(self, captions: Hypotheses, language: str) -> tuple[str, ...]:
        """The first caption of each image in words."""
        vocabulary = self.groups[self._group_of(language)]
        return tuple(vocabulary.decode(row, language) for row in captions.positions[:, 0].tolist())

    def opened(
        self, language: str, features: ImageFeatures
    ) -> tuple[StepDecoder, CaptionVocabulary]:
        """The decoder of a language for some images, and its vocabulary."""
        name = self._group_of(language)
        return self._decoder(name, features), self.groups[name]

    def _group_of(self, language: str) -> str:
        return next(name for name, group in self.groups.items() if language in group.languages)

    def _decoder(self, name: str, features: ImageFeatures) -> StepDecoder:
        image = _Part(self.arrays, IMAGE)
        outputs = self._outputs[name]
        return DECODERS[self.architecture](_Part(self.arrays, name), image, outputs, features)

    @cached_property
    def _repeatable(self) -> Mapping[str, NDArray[np.bool_]]:
        return {
            language: vocabulary.repeatable(language)
            for vocabulary in self.groups.values()
            for language in vocabulary.languages
        }

    @cached_property
    def _outputs(self) -> Mapping[str, WordOutput]:
        return {
            name: WordOutput(_Part(self.arrays, name), vocabulary)
            for name, vocabulary in self.groups.items()
        }


@dataclass(frozen=True)
class BuiltInCaptioner:
    """A trained captioner (engine Captioner)."""

    name: str
    languages: tuple[str, ...]
    folder: Path
    card: Mapping[str, Any]
    beam: Beam
    confidence: Mapping[str, Confidence]

    def caption(self, features: ImageFeatures) -> tuple[tuple[Caption, ...], ...]:
        """The captions of each image, one for each language, in batches.

        ValueError for features without the feature map that the decoder attends to.
        """
        inputs = with_tags(features, self.tagger)
        return tuple(
            captions
            for first in range(0, len(features), BATCH)
            for captions in self._batch(_rows(inputs, slice(first, first + BATCH)))
        )

    def _batch(self, features: ImageFeatures) -> Iterator[tuple[Caption, ...]]:
        written = self.decoders.captions(features, self.beam)
        columns: Sequence[Sequence[Caption]] = [
            [
                Caption(text, language, GENERATED + self.name, round(float(sure), 4))
                for text, sure in zip(
                    self.decoders.text(written[language], language),
                    self.confidence[language](written[language])[:, 0],
                    strict=True,
                )
            ]
            for language in self.languages
        ]
        return zip(*columns, strict=True)

    def searching(self, beam: Beam) -> BuiltInCaptioner:
        """The same captioner with another search."""
        return replace(self, beam=beam)

    @cached_property
    def decoders(self) -> CaptionDecoders:
        """The network."""
        vocabulary = self.vocabulary
        groups = {
            name: vocabulary.only(*languages) for name, languages in self.card["groups"].items()
        }
        arrays = Arrays(self.folder / WEIGHTS_FILE)
        weight = float(self.card.get("match_weight", 0.0))
        match = CaptionMatch(_Part(arrays, PART), weight) if weight else None
        return CaptionDecoders(str(self.card["architecture"]), groups, arrays, match)

    @cached_property
    def vocabulary(self) -> CaptionVocabulary:
        """The words of all decoders."""
        return CaptionVocabulary.load(self.folder)

    @cached_property
    def tagger(self) -> BuiltInTagger | None:
        """The tagger whose tags are an input; UnknownModel if it is not the one of training."""
        if "tagger" not in self.card:
            return None
        tagger = registry.load_tagger(str(self.card["tagger"]))
        if not tagger.name.endswith(f"@{self.card['tagger_digest']}"):
            raise UnknownModel(
                f"{self.name} was trained with the tags of {self.card['tagger']}"
                f"@{self.card['tagger_digest']}, but there is {tagger.name}: the captions would "
                "be wrong; restore that model, or train again"
            )
        return tagger


def load(folder: Path) -> BuiltInCaptioner:
    """Kind `captioner`."""
    card = model_folder.read_card(folder)
    if card["architecture"] not in DECODERS:
        raise UnknownModel(
            f"{card['name']} has a decoder '{card['architecture']}'; this capsearch has "
            f"{', '.join(DECODERS)}: run `pip install -U capsearch`"
        )
    return BuiltInCaptioner(
        name=f"{card['name']}@{registry.stored_digest(folder, card)}",
        languages=tuple(card["languages"]),
        folder=folder,
        card=card,
        beam=Beam(**card["beam"]),
        confidence={
            language: Confidence(**fitted) for language, fitted in card["confidence"].items()
        },
    )


def with_tags(features: ImageFeatures, tagger: BuiltInTagger | None) -> ImageFeatures:
    """Image + tags (COCO-CN, appendix): the tags' probabilities beside the pooled feature."""
    if tagger is None:
        return features
    tags = tagger.probabilities(features.pooled)
    return ImageFeatures(np.concatenate([features.pooled, tags], axis=1), features.grid)


def _rows(features: ImageFeatures, rows: slice) -> ImageFeatures:
    grid = None if features.grid is None else features.grid[rows]
    return ImageFeatures(features.pooled[rows], grid)
