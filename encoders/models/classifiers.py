"""Linear classifiers of concepts in the space of a model's image vectors.

They are distilled from the tagger of the model's backbone: what it makes of training images is
learned as a function of their vectors. So the concepts that a query names are recognised in any
indexed image, without a tag being stored (engine.evidence). Calibration fits them and what they are
worth; they are kept beside its other files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from capsearch.encoders import atomic
from capsearch.encoders.models.model_folder import Arrays, save_arrays
from capsearch.encoders.text import concepts
from capsearch.encoders.text.concepts.mentions import mentioned
from capsearch.engine.evidence import Floats, NamedConcepts
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import strip_bias

NAMES_FILE, WEIGHTS_FILE = "classifiers.json", "classifiers.safetensors"
_MIN_IMAGES = 20.0  # training images that show a concept, by the tagger's probabilities
_STEPS, _BATCH, _LR, _SEED = 2000, 256, 3e-3, 0
_MOMENTS = (0.9, 0.999)  # of Adam


@dataclass(frozen=True)
class ConceptClassifiers:
    """log-odds that an image shows each concept = weights @ its vector + bias."""

    ids: tuple[str, ...]
    weights: Vectors = field(repr=False)  # (K, D) for rows of an index
    biases: Vectors = field(repr=False)  # (K,)

    def senses(self, text: str, language: str) -> tuple[tuple[int, ...], ...]:
        """The classifiers of each thing that a text names, as far as there are any.

        Those of what the name means, or where there are none, those of everything narrower.
        """
        found = []
        for ids in mentioned(text, language):
            known = [self._row[one] for one in concepts.broadest(ids) if one in self._row]
            found.append(known or sorted(self._row[one] for one in ids if one in self._row))
        return tuple(tuple(rows) for rows in found if rows)

    def named(self, text: str, language: str) -> NamedConcepts | None:
        """Those that a text names; None without any."""
        senses = self.senses(text, language)
        if not senses:
            return None
        rows = [row for one in senses for row in one]
        return NamedConcepts(self.weights[rows], self.biases[rows], tuple(map(len, senses)))

    def scores(self, texts: Sequence[str], language: str, images: Vectors) -> Floats:
        """(Q, N) of many texts on many images, as `NamedConcepts.scores` has them."""
        log_odds = images @ self.weights.T + self.biases  # (N, D) x (D, K) -> (N, K)
        found = np.zeros((len(texts), len(images)))
        for at, text in enumerate(texts):
            for rows in self.senses(text, language):
                found[at] -= np.logaddexp(0.0, -log_odds[:, rows].max(axis=1))
        return found

    @cached_property
    def _row(self) -> dict[str, int]:
        return {one: row for row, one in enumerate(self.ids)}

    def save(self, folder: Path) -> None:
        """Write them into a calibration's folder; the names last."""
        save_arrays(folder / WEIGHTS_FILE, {"weights": self.weights, "biases": self.biases})
        atomic.write_text(folder / NAMES_FILE, json.dumps(self.ids, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: Path) -> ConceptClassifiers | None:
        """Those of a calibration's folder, or None."""
        if not (folder / NAMES_FILE).is_file():
            return None
        stored = Arrays(folder / WEIGHTS_FILE)
        ids = json.loads((folder / NAMES_FILE).read_text(encoding="utf-8"))
        return cls(tuple(ids), stored["weights"], stored["biases"])


def distil(ids: Sequence[str], probabilities: Vectors, images: Vectors) -> ConceptClassifiers:
    """Logistic regression of a tagger's (N, K) probabilities on image vectors (N, D), by Adam.

    Concepts that too few of the images show are left out: nothing could be learned of them.
    """
    shown = np.flatnonzero(probabilities.sum(axis=0) >= _MIN_IMAGES)
    wanted = probabilities[:, shown]
    space = strip_bias(images)  # the hubness penalty tells nothing
    scale = np.float32(np.sqrt(space.shape[1]))  # coordinates of unit vectors are small
    share = np.clip(wanted.mean(axis=0), 1e-5, 1 - 1e-5)
    found = _fit(space * scale, wanted, np.log(share / (1 - share)).astype(np.float32))
    weights = np.pad(found[:, :-1] * scale, ((0, 0), (0, 1)))
    return ConceptClassifiers(tuple(ids[at] for at in shown.tolist()), weights, found[:, -1].copy())


def _fit(inputs: Vectors, wanted: Vectors, biases: Vectors) -> Vectors:
    """(N, D), (N, K), (K,) -> (K, D + 1) weights and biases."""
    random = np.random.default_rng(_SEED)
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    found = np.zeros((wanted.shape[1], inputs.shape[1]), np.float32)
    found[:, -1] = biases
    adam = _Adam(np.zeros_like(found), np.zeros_like(found))
    for number in range(_STEPS):
        rows = random.integers(0, len(inputs), _BATCH)
        predicted = 1.0 / (1.0 + np.exp(-(inputs[rows] @ found.T)))
        gradient = (predicted - wanted[rows]).T @ inputs[rows] / (_BATCH * wanted.shape[1])
        found -= adam.step(gradient, 0.5 + 0.5 * np.cos(np.pi * number / _STEPS))
    return found


@dataclass(slots=True)
class _Adam:
    """Kingma and Ba 2015."""

    mean: Vectors
    square: Vectors
    steps: int = 0

    def step(self, gradient: Vectors, decay: float) -> Vectors:
        """What to subtract, at a share of the learning rate."""
        self.steps += 1
        for moment, keep, value in (
            (self.mean, _MOMENTS[0], gradient),
            (self.square, _MOMENTS[1], gradient**2),
        ):
            moment *= keep
            moment += (1.0 - keep) * value
        mean, square = (
            moment / (1.0 - keep**self.steps)
            for moment, keep in zip((self.mean, self.square), _MOMENTS, strict=True)
        )
        return np.asarray(_LR * decay * mean / (np.sqrt(square) + 1e-8), np.float32)
