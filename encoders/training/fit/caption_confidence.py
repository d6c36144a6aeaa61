"""How sure a caption is: the probability that it names nothing that is not there.

A caption is right if everything it names was also named by people, in any language, or is among
the image's labelled objects: no object is hallucinated (CHAIR, Rohrbach et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from capsearch.encoders import concepts
from capsearch.encoders.calibration import logistic
from capsearch.encoders.calibration.logistic import Floats
from capsearch.encoders.captioners import CaptionDecoders, Confidence
from capsearch.encoders.captioners.search import Beam
from capsearch.encoders.datasets.captioned import CaptionedImage
from capsearch.encoders.tag_labels import annotate
from capsearch.encoders.tag_words import named_in
from capsearch.encoders.training.fit.caption_trainer import ReferenceSet, hypotheses

MAX_IMAGES = 600
_SHOWN = frozenset({"actions", "attributes"})  # tables whose concepts people often leave unsaid


def fit_confidence(
    decoders: CaptionDecoders, validation: ReferenceSet, beam: Beam
) -> Mapping[str, Confidence]:
    """By language, from the mean log-probability of a caption's words on validation."""
    captioned = {row for found in validation.references.values() for row in found}
    rows = np.array(sorted(captioned), np.int64)[:MAX_IMAGES]
    found = hypotheses(decoders, validation.images, rows, beam)
    images = [validation.images.data.images[row] for row in rows]
    there = _there(validation, images)
    confidence = {}
    for language, captions in found.items():
        scores = np.array([log_p / max(length, 1) for _, log_p, length in captions])
        pairs = zip(captions, there, strict=True)
        right = np.array([is_right(text, language, known) for (text, _, _), known in pairs], float)
        confidence[language] = _fit(scores, right)
    return confidence


def is_right(caption: str, language: str, there: frozenset[str]) -> bool:
    """Whether all things that a caption names are among concepts that are there."""
    named = named_in(caption, language).concepts
    things = [one for one in named if concepts.by_id(one).table not in _SHOWN]
    return all(_related(one) & there for one in things)


def _related(concept: str) -> frozenset[str]:
    """Itself and what is broader or narrower: an animal is right where people say cat."""
    return concepts.broader(concept) | concepts.narrower(concept)


def _there(validation: ReferenceSet, images: Sequence[CaptionedImage]) -> list[frozenset[str]]:
    languages = tuple(validation.references)
    return [
        frozenset().union(one.objects, one.labels, *one.said.values())
        for one in annotate(images, languages).mentions
    ]


def _fit(scores: Floats, right: Floats) -> Confidence:
    """Logistic regression; the share of right captions where they are all right or all wrong."""
    if 0 < right.sum() < len(right):
        ones, zeros = np.ones(len(right)), np.zeros(len(right))
        found = logistic.fit(scores[:, None], right, ones, zeros)
        return Confidence(float(found.coefficients[0]), found.intercept)
    share = (right.sum() + 1) / (len(right) + 2)
    return Confidence(0.0, math.log(share / (1 - share)))
