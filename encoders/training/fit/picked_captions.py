"""Captions that a captioner writes for training images, picked by what people wrote of them.

Zhu 2016 adds generated captions that people picked to the training captions. Here captions of
people pick them, in whatever language they are: the match (encoders.captioners.matching) puts
captions of all languages near the images that they describe, so a Chinese caption can be compared
with English ones. Images without a caption in a language so come to have one, and a small decoder
learns from sentences that it can write (sequence-level distillation, Kim and Rush 2016).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from capsearch.encoders.captioners import BATCH, CaptionDecoders
from capsearch.encoders.captioners.matching import CaptionMatch, cosines
from capsearch.encoders.captioners.search import Beam, Hypotheses
from capsearch.encoders.captioners.vocabulary import END, CaptionVocabulary
from capsearch.encoders.datasets.features import Report
from capsearch.encoders.training.fit.caption_corpus import (
    PICKED,
    EncodedCaptions,
    TokenisedCaptions,
)
from capsearch.encoders.training.fit.feature_maps import EncodedImages
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import unit

COUNT = 2  # captions of each image and language
# Of the matches, beside the score of the search: on training images with captions in two languages,
# where those of one picked those of the other, CIDEr-D 1.23 -> 1.36 (zh), 1.27 -> 1.34 (ja).
IMAGE_WEIGHT, PEOPLE_WEIGHT = 4.0, 4.0


def pick(
    decoders: CaptionDecoders,
    match: CaptionMatch,
    images: EncodedImages,
    captions: Mapping[str, EncodedCaptions],
    beam: Beam,
    report: Report | None = None,
) -> Mapping[str, TokenisedCaptions]:
    """The best `COUNT` captions of each image by language, of those that a search finds."""
    people = people_vectors(match, captions, len(images))
    found: dict[str, list[Hypotheses]] = {}
    for first in range(0, len(images), BATCH):
        rows = np.arange(first, min(first + BATCH, len(images)))
        features = images.at(rows)
        own = match.image_vectors(features.pooled)
        for language, some in decoders.candidates(features, beam).items():
            vectors = match.caption_vectors(some.positions, language)
            scores = beam.scores(some.log_probability, some.length)
            scores += IMAGE_WEIGHT * cosines(vectors, own)
            scores += PEOPLE_WEIGHT * cosines(vectors, people[rows])
            best = np.argsort(-scores, axis=1, kind="stable")[:, :COUNT]
            found.setdefault(language, []).append(some.at(best))
        if report:
            report(int(rows[-1]) + 1, len(images))
    vocabularies = {one: group for group in decoders.groups.values() for one in group.languages}
    return {one: _tokenised(some, vocabularies[one], one) for one, some in found.items()}


def people_vectors(
    match: CaptionMatch, captions: Mapping[str, EncodedCaptions], images: int
) -> Vectors:
    """(N, K) the mean of the vectors of an image's captions in all languages; 0 without any."""
    total: Vectors | None = None
    for language, some in captions.items():
        longest = max(map(len, some.sentences), default=1)
        for row, own in enumerate(some.by_image):
            if not len(own):
                continue
            positions = np.full((1, len(own), longest), END, np.int64)
            for at, number in enumerate(own.tolist()):
                positions[0, at, : len(some.sentences[number])] = some.sentences[number]
            vectors = match.caption_vectors(positions, language)[0]
            if total is None:
                total = np.zeros((images, vectors.shape[1]), np.float32)
            total[row] += vectors.sum(axis=0)
    assert total is not None  # a training split has captions
    return unit(total)


def _tokenised(
    found: list[Hypotheses], vocabulary: CaptionVocabulary, language: str
) -> TokenisedCaptions:
    words, rows = [], []
    row = 0
    for some in found:
        for image in some.positions.tolist():
            for positions in image:
                written = positions[: positions.index(END)] if END in positions else positions
                if written:
                    words.append(tuple(vocabulary.words[language][one - 1] for one in written))
                    rows.append(row)
            row += 1
    return TokenisedCaptions(np.array(rows, np.int64), words, [PICKED] * len(rows))
