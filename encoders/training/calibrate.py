"""What only validation can say: what hubs pay, how much CL counts, what a stranger scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.text import caption_vectors
from capsearch.encoders.tolls import FREE, Bank, Toll, nearness
from capsearch.encoders.training.corpus import LanguageCaptions
from capsearch.encoders.training.pair import Pair, TrainingSet, encode, project
from capsearch.encoders.training.validation import cm_mrr
from capsearch.engine.metrics import PLATEAU, Trial, best_weight
from capsearch.engine.records import Vectors

SHARES = tuple(round(step / 20, 2) for step in range(21))
DEFAULT_WEIGHT = 0.5  # where no validation photo has captions in two languages
TOLL_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
LEAST = 0.1  # of the validation photos lie further from all questions; see docs/ablations.md
SHARPNESSES = (5.0, 10.0, 20.0, 30.0)  # a trained temperature is about the third

Paid = NDArray[np.float32]  # (N,) tolls, or nearnesses they are made from


@dataclass(frozen=True, slots=True)
class Calibration:
    """The numbers of model.json that search uses, and what CM scores with them."""

    sentence_share: float
    clm_weights: Mapping[str, float]
    cl_floors: Mapping[str, float]
    tolls: Mapping[str, Toll]  # of "image" and "caption"
    served_mrr: Mapping[str, float]  # with these tolls; training knows none


@dataclass(frozen=True, slots=True)
class _Side:
    """A language's validation captions in both spaces, and what each pays."""

    captions: LanguageCaptions
    visual: Vectors
    sentence: Vectors
    tolls: Paid

    def firsts(self) -> Mapping[int, int]:
        """Photo -> its first caption's row: the one description the paper's protocol gives it."""
        rows: dict[int, int] = {}
        for row, photo in enumerate(self.captions.photos.tolist()):
            rows.setdefault(photo, row)
        return rows


@dataclass(frozen=True, slots=True)
class _Collection:
    """The validation photos as an index would hold them."""

    images: Vectors
    tolls: Paid
    sides: Mapping[str, _Side]
    share: float = 0.0

    def cm(self) -> Mapping[str, float]:
        """CM MRR by language."""
        return {
            language: cm_mrr(side.visual @ self.images.T - self.tolls, side.captions.photos)
            for language, side in self.sides.items()
        }

    def trials(self, only: str | None = None) -> Iterator[Trial]:
        """Each ordered pair of languages: one's captions as queries, the other's as descriptions.

        Asked with the sentences of photos that have captions in both, among all photos
        described in the other.
        """
        for asked, query in self.sides.items():
            for told, described in self.sides.items():
                if asked == told or only not in (None, asked):
                    continue
                firsts = described.firsts()
                photos = np.array(list(firsts))
                items = np.array(list(firsts.values()))
                rows = np.flatnonzero(np.isin(query.captions.photos, photos))
                if not len(rows):
                    continue
                cl = (1 - self.share) * query.visual[rows] @ described.visual[items].T
                cl = cl + self.share * query.sentence[rows] @ described.sentence[items].T
                cm = query.visual[rows] @ self.images[photos].T
                yield Trial(
                    cl=(cl - described.tolls[items]).astype(np.float32),
                    cm=cm - self.tolls[photos],
                    queries=query.captions.photos[rows],
                    items=photos,
                )

    def cl(self) -> float:
        """Mean CL MRR of all pairs of languages; 0 where there is none."""
        found = [trial.mrr(1.0) for trial in self.trials()]
        return float(np.mean(found)) if found else 0.0

    def paying(self, tolls: Mapping[str, Paid]) -> _Collection:
        """The same with captions that pay."""
        sides = {name: replace(side, tolls=tolls[name]) for name, side in self.sides.items()}
        return replace(self, sides=sides)


def calibrate(pair: Pair, bank: Bank, validation: TrainingSet) -> Calibration:
    """Searches the tolls, the sentence encoder's share in CL, and CL's in CLM by language."""
    there = _collect(pair, validation)
    image, paid = _best_toll(
        lambda sharpness: {"": nearness(there.images, bank.visual, bank.log_shares, sharpness)},
        lambda tolls: float(np.mean(list(replace(there, tolls=tolls[""]).cm().values()) or [0.0])),
    )
    there = replace(there, tolls=paid[""])
    share = max(SHARES, key=lambda share: replace(there, share=share).cl())
    there = replace(there, share=share)
    centres = caption_vectors(bank.visual, bank.sentence, share)

    def near(sharpness: float) -> Mapping[str, Paid]:
        return {
            name: nearness(
                caption_vectors(side.visual, side.sentence, share),
                centres,
                bank.log_shares,
                sharpness,
            )
            for name, side in there.sides.items()
        }

    caption, paid = _best_toll(near, lambda tolls: there.paying(tolls).cl())
    there = there.paying(paid)
    weights, floors = {}, {}
    for language in validation.captions:
        trials = list(there.trials(only=language))
        weights[language] = best_weight(trials) if trials else DEFAULT_WEIGHT
        floors[language] = round(_floor(trials), 4)
    scores = {name: round(mrr, 4) for name, mrr in there.cm().items()}
    return Calibration(share, weights, floors, {"image": image, "caption": caption}, scores)


def _collect(pair: Pair, validation: TrainingSet) -> _Collection:
    images = project(pair, validation)
    sides = {
        language: _Side(
            captions,
            encode(pair, captions, language),
            captions.sentence.astype(np.float32),
            np.zeros(len(captions.photos), np.float32),
        )
        for language, captions in validation.captions.items()
        if len(captions.photos)
    }
    return _Collection(images, np.zeros(len(images), np.float32), sides)


def _best_toll(
    near: Callable[[float], Mapping[str, Paid]], mrr: Callable[[Mapping[str, Paid]], float]
) -> tuple[Toll, Mapping[str, Paid]]:
    """The toll that validates best, and what everyone pays; none unless it clearly helps."""
    free = {name: np.zeros_like(one) for name, one in near(FREE.sharpness).items()}
    best, paid, highest = FREE, free, mrr(free) + PLATEAU
    for sharpness in SHARPNESSES:
        nearnesses = near(sharpness)
        usual, least = _usual_and_least(nearnesses)
        for share in TOLL_SHARES:
            toll = Toll(share, sharpness, usual, least)
            tolls = {name: toll.at(one) for name, one in nearnesses.items()}
            if (reached := mrr(tolls)) > highest:
                best, paid, highest = toll, tolls, reached
    return best, paid


def _usual_and_least(found: Mapping[str, Paid]) -> tuple[float, float]:
    """The mean nearness, and what nine in ten lie above."""
    every = np.concatenate([np.empty(0, np.float32), *found.values()])
    if not len(every):
        return 0.0, 0.0
    return round(float(every.mean()), 4), round(float(np.quantile(every, LEAST)), 4)


def _floor(trials: list[Trial]) -> float:
    """The mean CL score of pairs that do not belong together; 0 without any."""
    scores = [t.cl[t.queries[:, None] != t.items[None, :]] for t in trials]
    return float(np.mean(np.concatenate(scores))) if scores else 0.0
