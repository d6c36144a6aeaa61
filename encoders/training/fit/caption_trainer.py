"""The trainer of captioners: cross entropy on captions, CIDEr-D on validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.captioners import BATCH, CaptionDecoders
from capsearch.encoders.captioners.metrics import References, cider
from capsearch.encoders.captioners.search import Beam, Hypotheses
from capsearch.encoders.training.fit.caption_corpus import EncodedCaptions
from capsearch.encoders.training.fit.feature_maps import EncodedImages
from capsearch.encoders.training.fit.loop import TrainingLoop, one_group
from capsearch.encoders.training.nn.caption_decoders import ImageBatch
from capsearch.encoders.training.nn.caption_transformer import CaptionNetwork
from capsearch.encoders.training.nn.dual_encoder import TrainingOptions
from capsearch.engine.errors import TrainingProblem

VALIDATION_IMAGES = 400  # of each language, on which every epoch is measured
_PADDING = -100


@dataclass(frozen=True, slots=True)
class CaptionSet:
    """Training images with their captions by language."""

    images: EncodedImages
    captions: Mapping[str, EncodedCaptions]


@dataclass(frozen=True, slots=True)
class ReferenceSet:
    """Validation images with what people wrote of them."""

    images: EncodedImages
    references: References


class CaptionTrainer(TrainingLoop):
    """Trains a CaptionNetwork; the best epoch has the highest CIDEr-D on validation.

    `alternate`: batches of one language after the other, as in Miyazaki 2016, instead of all
    languages in every batch.
    """

    metric = "CIDEr-D"
    model: CaptionNetwork

    def __init__(
        self,
        model: CaptionNetwork,
        train: CaptionSet,
        validation: ReferenceSet,
        options: TrainingOptions,
        checkpoint: Path | None = None,
        alternate: bool = False,
    ) -> None:
        groups = one_group(model.parameters(), options.lr)
        super().__init__(model, groups, len(train.images), options, checkpoint)
        self.train = train
        self.validation = first_images(validation)
        self.alternate = alternate

    def validate(self) -> Mapping[str, float]:
        """CIDEr-D of greedy captions by the averaged weights."""
        decoders = cast(CaptionNetwork, self.averaged.module).served()
        beam = Beam(1, self.model.config.max_words)
        return ciders(decoders, self.validation, beam)

    def loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """Cross entropy per word over all captions drawn for the batch."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bfloat16):
            return self._loss(image_rows, rng)

    def _loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        languages = tuple(self.train.captions)
        if self.alternate:
            languages = (languages[self.step % len(languages)],)
        images = self.model.image(self._batch(image_rows))
        totals, words = [], 0
        for language in languages:
            for rows, sentences in self._draws(language, image_rows, rng):
                loss, count = self._language_loss(images[rows], sentences, language)
                totals.append(loss)
                words += count
        if not totals:
            raise TrainingProblem("a batch without captions: the training split has too few")
        return cast(Tensor, sum(totals)) / words

    def _language_loss(
        self, images: Tensor, sentences: Sequence[NDArray[np.int64]], language: str
    ) -> tuple[Tensor, int]:
        """The summed loss of captions, and their number of words."""
        logits, targets, known = self._predictions(images, sentences, language)
        loss = nn.functional.cross_entropy(
            logits, targets, reduction="sum", label_smoothing=self.model.config.label_smoothing
        )
        return loss, int(known.sum())

    def _predictions(
        self, images: Tensor, sentences: Sequence[NDArray[np.int64]], language: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(P, W + 1) logits and (P,) positions of all words, and (B, T) where there are words."""
        decoder = self.model.decoder(self.model.group_of(language))
        targets = nn.utils.rnn.pad_sequence(
            [torch.from_numpy(one) for one in sentences], batch_first=True, padding_value=_PADDING
        )
        rows = torch.from_numpy(decoder.vocabulary.outputs(language))
        start = torch.full((len(targets), 1), decoder.vocabulary.start(language))
        tokens = torch.cat([start, rows[targets[:, :-1].clamp(min=0)]], 1)
        hidden = decoder(images, tokens)
        known = targets != _PADDING
        return decoder.logits(hidden[known], language), targets[known], known

    def _batch(self, rows: NDArray[np.int64]) -> ImageBatch:
        found = self.train.images.at(rows)
        assert found.grid is not None
        return ImageBatch(torch.from_numpy(found.pooled), torch.from_numpy(found.grid))

    def _draws(
        self, language: str, image_rows: NDArray[np.int64], rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], Sequence[NDArray[np.int64]]]]:
        """(rows in the batch, captions) `captions_per_image` times, none twice."""
        captions = self.train.captions[language]
        mixed = [rng.permutation(captions.by_image[row]) for row in image_rows]
        for draw in range(self.options.captions_per_image):
            having = [at for at, found in enumerate(mixed) if len(found) > draw]
            if having:
                yield np.array(having), [captions.sentences[mixed[at][draw]] for at in having]


def hypotheses(
    decoders: CaptionDecoders, images: EncodedImages, rows: NDArray[np.int64], beam: Beam
) -> Mapping[str, Sequence[tuple[str, float, int]]]:
    """(caption, log P, length) of some images by language, in batches."""
    found: dict[str, list[tuple[str, float, int]]] = {}
    for first in range(0, len(rows), BATCH):
        batch = decoders.captions(images.at(rows[first : first + BATCH]), beam)
        for language, one in batch.items():
            found.setdefault(language, []).extend(_captions(decoders, one, language))
    return found


def _captions(
    decoders: CaptionDecoders, found: Hypotheses, language: str
) -> Iterator[tuple[str, float, int]]:
    yield from zip(
        decoders.text(found, language),
        found.log_probability[:, 0].tolist(),
        found.length[:, 0].tolist(),
        strict=True,
    )


def ciders(decoders: CaptionDecoders, validation: ReferenceSet, beam: Beam) -> dict[str, float]:
    """CIDEr-D by language of the captions of all images."""
    rows = np.arange(len(validation.images))
    found = hypotheses(decoders, validation.images, rows, beam)
    return {
        language: cider({row: captions[row][0] for row in references}, references, language)
        for language, captions in found.items()
        if (references := validation.references.get(language))
    }


def first_images(validation: ReferenceSet) -> ReferenceSet:
    """The first images of each language."""
    rows = sorted(
        {row for found in validation.references.values() for row in list(found)[:VALIDATION_IMAGES]}
    )
    place = {row: at for at, row in enumerate(rows)}
    references = {
        language: {place[row]: texts for row, texts in found.items() if row in place}
        for language, found in validation.references.items()
    }
    return ReferenceSet(validation.images.only(np.array(rows, np.int64)), references)
