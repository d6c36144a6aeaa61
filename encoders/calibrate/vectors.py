"""What changes a model's vectors and their fusion, fitted on validation vectors.

Hubness penalties, the sentence encoder's weight in CL, CL's weight in CLM, and CL floors.

A query bank: captions as some thousand cluster centres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.models.hubness import NO_PENALTY, HubnessPenalty, QueryBank, bank_similarity
from capsearch.encoders.models.text import DEFAULT_CLM_WEIGHT, Calibration, caption_vectors
from capsearch.engine.metrics import PLATEAU, Trial, best_weight, mean_reciprocal_rank, ranks
from capsearch.engine.records import Vectors

SENTENCE_WEIGHTS = tuple(round(step / 20, 2) for step in range(21))
PENALTY_WEIGHTS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
FLOOR_QUANTILE = 0.1  # of the validation images' similarities to the bank; docs/ablations.md
INVERSE_TEMPERATURES = (5.0, 10.0, 20.0, 30.0)  # a trained temperature is about the third

Values = NDArray[np.float32]  # (N,) penalties, or the bank similarities they are made from


@dataclass(frozen=True, slots=True)
class CaptionVectors:
    """A language's validation captions in both spaces, and their hubness penalties."""

    image_rows: NDArray[np.int64]  # (M,) of the images they describe
    visual: Vectors  # (M, D) unit vectors
    sentence: Vectors  # (M, S)
    penalties: Values

    @classmethod
    def of(
        cls, image_rows: NDArray[np.int64], visual: Vectors, sentence: Vectors
    ) -> CaptionVectors:
        """Captions without penalties."""
        return cls(image_rows, visual, sentence, np.zeros(len(image_rows), np.float32))

    def some(self, count: int, seed: int = 0) -> CaptionVectors:
        """At most `count` of them, drawn at random."""
        rows = np.random.default_rng(seed).permutation(len(self.image_rows))[:count]
        kept = (self.image_rows[rows], self.visual[rows], self.sentence[rows])
        return CaptionVectors(*kept, self.penalties[rows])

    def first_rows(self) -> Mapping[int, int]:
        """Image row -> row of its first caption, the one caption the paper's protocol uses."""
        rows: dict[int, int] = {}
        for row, image_row in enumerate(self.image_rows.tolist()):
            rows.setdefault(image_row, row)
        return rows


@dataclass(frozen=True, slots=True)
class _Collection:
    """The validation images as an index would hold them."""

    images: Vectors
    penalties: Values
    captions: Mapping[str, CaptionVectors]
    sentence_weight: float = 0.0

    def cm(self) -> Mapping[str, float]:
        """CM MRR by language."""
        return {
            language: cm_mrr(vectors.visual @ self.images.T - self.penalties, vectors.image_rows)
            for language, vectors in self.captions.items()
        }

    def trials(self, only: str | None = None) -> Iterator[Trial]:
        """Each ordered pair of languages: one's captions as queries, the other's as documents.

        The queries are captions of images that have captions in both languages; the collection
        is all images with a caption in the other.
        """
        for query_language, queries in self.captions.items():
            for language, documents in self.captions.items():
                if query_language == language or only not in (None, query_language):
                    continue
                first = documents.first_rows()
                image_rows = np.array(list(first))
                items = np.array(list(first.values()))
                rows = np.flatnonzero(np.isin(queries.image_rows, image_rows))
                if not len(rows):
                    continue
                cl = queries.visual[rows] @ documents.visual[items].T
                cl = (1 - self.sentence_weight) * cl
                cl += self.sentence_weight * queries.sentence[rows] @ documents.sentence[items].T
                cm = queries.visual[rows] @ self.images[image_rows].T
                yield Trial(
                    cl=(cl - documents.penalties[items]).astype(np.float32),
                    cm=cm - self.penalties[image_rows],
                    queries=queries.image_rows[rows],
                    items=image_rows,
                )

    def cl(self) -> float:
        """Mean CL MRR of all pairs of languages; 0 where there is none."""
        scores = [trial.mrr(1.0) for trial in self.trials()]
        return float(np.mean(scores)) if scores else 0.0

    def with_caption_penalties(self, penalties: Mapping[str, Values]) -> _Collection:
        """The same with other hubness penalties on the captions."""
        captions = {
            name: replace(vectors, penalties=penalties[name])
            for name, vectors in self.captions.items()
        }
        return replace(self, captions=captions)


def fit_vectors(
    images: Vectors,
    captions: Mapping[str, CaptionVectors],
    languages: Iterable[str],
    bank: QueryBank,
) -> Calibration:
    """Searches the hubness penalties, the sentence encoder's weight in CL, and CL's in CLM.

    `languages` are those of the model; one without captions gets the default weight.
    """
    described = {name: vectors for name, vectors in captions.items() if len(vectors.image_rows)}
    collection = _Collection(images, np.zeros(len(images), np.float32), described)
    image, chosen = _best_penalty(
        lambda beta: {"": bank_similarity(collection.images, bank.visual, bank.log_shares, beta)},
        lambda penalties: _mean(replace(collection, penalties=penalties[""]).cm()),
    )
    collection = replace(collection, penalties=chosen[""])
    weight = max(
        SENTENCE_WEIGHTS, key=lambda weight: replace(collection, sentence_weight=weight).cl()
    )
    collection = replace(collection, sentence_weight=weight)
    caption, chosen = _best_penalty(
        lambda beta: _caption_similarities(collection, bank, beta),
        lambda penalties: collection.with_caption_penalties(penalties).cl(),
    )
    collection = collection.with_caption_penalties(chosen)
    clm_weights, floors = {}, {}
    for language in languages:
        trials = list(collection.trials(only=language))
        clm_weights[language] = best_weight(trials) if trials else DEFAULT_CLM_WEIGHT
        floors[language] = round(_floor(trials), 4)
    mrr = {name: round(value, 4) for name, value in collection.cm().items()}
    return Calibration(weight, clm_weights, floors, {"image": image, "caption": caption}, mrr)


def _caption_similarities(
    collection: _Collection, bank: QueryBank, inverse_temperature: float
) -> Mapping[str, Values]:
    weight = collection.sentence_weight
    centres = caption_vectors(bank.visual, bank.sentence, weight)
    return {
        name: bank_similarity(
            caption_vectors(vectors.visual, vectors.sentence, weight),
            centres,
            bank.log_shares,
            inverse_temperature,
        )
        for name, vectors in collection.captions.items()
    }


def _best_penalty(
    similarities: Callable[[float], Mapping[str, Values]],
    mrr: Callable[[Mapping[str, Values]], float],
) -> tuple[HubnessPenalty, Mapping[str, Values]]:
    """The penalty that validates best, and its values; NO_PENALTY unless one clearly helps."""
    similar = similarities(NO_PENALTY.inverse_temperature)
    values: Mapping[str, Values] = {name: np.zeros_like(row) for name, row in similar.items()}
    best, highest = NO_PENALTY, mrr(values) + PLATEAU
    for inverse_temperature in INVERSE_TEMPERATURES:
        similar = similarities(inverse_temperature)
        mean, floor = _mean_and_floor(similar)
        for weight in PENALTY_WEIGHTS:
            penalty = HubnessPenalty(weight, inverse_temperature, mean, floor)
            tried = {name: penalty.at(row) for name, row in similar.items()}
            if (reached := mrr(tried)) > highest:
                best, values, highest = penalty, tried, reached
    return best, values


def _mean_and_floor(similarities: Mapping[str, Values]) -> tuple[float, float]:
    """The mean similarity to the bank, and the quantile below which none counts."""
    every = np.concatenate([np.empty(0, np.float32), *similarities.values()])
    if not len(every):
        return 0.0, 0.0
    return round(float(every.mean()), 4), round(float(np.quantile(every, FLOOR_QUANTILE)), 4)


def _mean(by_language: Mapping[str, float]) -> float:
    return float(np.mean(list(by_language.values()) or [0.0]))


def _floor(trials: list[Trial]) -> float:
    """The mean CL score of pairs that do not belong together; 0 without any."""
    scores = [t.cl[t.queries[:, None] != t.items[None, :]] for t in trials]
    return float(np.mean(np.concatenate(scores))) if scores else 0.0


def cm_mrr(scores: Vectors, image_rows: NDArray[np.int64]) -> float:
    """MRR of captions as queries, by their scores (C, N); `image_rows` (C,) are the answers."""
    return float(mean_reciprocal_rank(ranks(scores, image_rows, np.arange(scores.shape[1]))))


CAPTIONS_PER_LANGUAGE = 8000  # at most, so that no language dominates the bank
CENTRES = 2048  # on validation as good as 12,000 captions; docs/ablations.md
KMEANS_ITERATIONS = 10


def cluster_bank(visual: Vectors, sentence: Vectors, seed: int) -> QueryBank:
    """Captions, (N, D) and (N, S) in both spaces, clustered in the shared one."""
    cluster = _clusters(visual, seed)
    counts = np.bincount(cluster)
    used = counts > 0

    def means(rows: Vectors) -> Vectors:
        sums = np.zeros((len(counts), rows.shape[1]), np.float32)
        np.add.at(sums, cluster, rows)
        return np.asarray(sums[used] / counts[used, None], np.float32)

    fractions = (counts[used] / counts.sum()).astype(np.float32)
    return QueryBank(means(visual), means(sentence), np.log(fractions))


def _clusters(vectors: Vectors, seed: int) -> NDArray[np.int64]:
    """(N,) the cluster of each vector; up to CENTRES vectors, each is its own cluster."""
    if len(vectors) <= CENTRES:
        return np.arange(len(vectors))
    import faiss

    clusters = faiss.Kmeans(
        vectors.shape[1],
        CENTRES,
        niter=KMEANS_ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),  # FAISS would subsample otherwise
    )
    clusters.train(vectors)
    return np.asarray(clusters.index.search(vectors, 1)[1][:, 0], np.int64)
