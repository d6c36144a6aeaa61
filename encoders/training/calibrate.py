"""What only validation can say: how much CL counts in CLM, and what an unrelated caption scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from capsearch.encoders.training.corpus import LanguageCaptions
from capsearch.encoders.training.pair import Pair, TrainingSet, encode, project
from capsearch.engine.metrics import Trial, best_weight
from capsearch.engine.records import Vectors

SHARES = tuple(round(step / 20, 2) for step in range(21))
DEFAULT_WEIGHT = 0.5  # where no validation photo has captions in two languages


@dataclass(frozen=True, slots=True)
class Calibration:
    """The numbers of model.json that search uses."""

    sentence_share: float
    clm_weights: Mapping[str, float]
    cl_floors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Side:
    """A language's validation captions in both spaces."""

    captions: LanguageCaptions
    visual: Vectors
    sentence: Vectors

    def firsts(self) -> Mapping[int, int]:
        """Photo -> its first caption's row: the one description the paper's protocol gives it."""
        rows: dict[int, int] = {}
        for row, photo in enumerate(self.captions.photos.tolist()):
            rows.setdefault(photo, row)
        return rows


def calibrate(pair: Pair, validation: TrainingSet) -> Calibration:
    """Searches the sentence encoder's share in CL, then the CL share in CLM by language."""
    images = project(pair, validation)
    sides = {
        language: _Side(
            captions, encode(pair, captions, language), captions.sentence.astype(np.float32)
        )
        for language, captions in validation.captions.items()
        if len(captions.photos)
    }
    share = _best_share(images, sides)
    weights, floors = {}, {}
    for language in validation.captions:
        trials = list(_trials(images, sides, share, only=language))
        weights[language] = best_weight(trials) if trials else DEFAULT_WEIGHT
        floors[language] = round(_floor(trials), 4)
    return Calibration(share, weights, floors)


def _best_share(images: Vectors, sides: Mapping[str, _Side]) -> float:
    def mrr(share: float) -> float:
        found = [trial.mrr(1.0) for trial in _trials(images, sides, share)]
        return float(np.mean(found)) if found else 0.0

    return max(SHARES, key=mrr)


def _trials(
    images: Vectors, sides: Mapping[str, _Side], share: float, only: str | None = None
) -> Iterator[Trial]:
    """Each ordered pair of languages: one's captions as queries, the other's as descriptions.

    Asked with the sentences of photos that have captions in both, among all photos described
    in the other.
    """
    for asked, query in sides.items():
        for told, described in sides.items():
            if asked == told or only not in (None, asked):
                continue
            firsts = described.firsts()
            photos = np.array(list(firsts))
            items = np.array(list(firsts.values()))
            rows = np.flatnonzero(np.isin(query.captions.photos, photos))
            if not len(rows):
                continue
            cl = (1 - share) * query.visual[rows] @ described.visual[items].T
            cl = cl + share * query.sentence[rows] @ described.sentence[items].T
            cm = query.visual[rows] @ images[photos].T
            yield Trial(cl.astype(np.float32), cm, query.captions.photos[rows], photos)


def _floor(trials: list[Trial]) -> float:
    """The mean CL score of pairs that do not belong together; 0 without any."""
    scores = [t.cl[t.queries[:, None] != t.items[None, :]] for t in trials]
    return float(np.mean(np.concatenate(scores))) if scores else 0.0
