"""Linear classifiers of concepts in the space of a model's image vectors.

Calibration distils them from the tagger of the model's backbone (encoders.calibrate.distil) and
keeps them beside its other files. The concepts that a query names are recognised with them in any
indexed image, without a tag being stored (engine.evidence).
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

NAMES_FILE, WEIGHTS_FILE = "classifiers.json", "classifiers.safetensors"


@dataclass(frozen=True)
class ConceptClassifiers:
    """log-odds that an image shows each concept = weights @ its vector + bias."""

    ids: tuple[str, ...]
    weights: Vectors = field(repr=False)  # (K, D) for rows of an index
    biases: Vectors = field(repr=False)  # (K,)

    def senses(self, things: Sequence[frozenset[str]]) -> tuple[tuple[int, ...], ...]:
        """The rows of the classifiers of each thing that a text names (`mentioned`), if any.

        Those of what the name means, or where there are none, those of everything narrower.
        """
        senses = []
        for ids in things:
            known = [self._row[name] for name in concepts.broadest(ids) if name in self._row]
            senses.append(known or sorted(self._row[name] for name in ids if name in self._row))
        return tuple(tuple(rows) for rows in senses if rows)

    def named(self, things: Sequence[frozenset[str]]) -> NamedConcepts | None:
        """Those of the things that a text names; None without any."""
        senses = self.senses(things)
        if not senses:
            return None
        rows = [row for sense in senses for row in sense]
        return NamedConcepts(self.weights[rows], self.biases[rows], tuple(map(len, senses)))

    def scores(self, texts: Sequence[str], language: str, images: Vectors) -> Floats:
        """(Q, N) of many texts on many images, as `NamedConcepts.scores` has them."""
        senses = [self.senses(mentioned(text, language)) for text in texts]
        used = sorted({row for things in senses for rows in things for row in rows})
        column = {row: at for at, row in enumerate(used)}
        weights = self.weights[used].astype(np.float64)
        log_odds = images.astype(np.float64) @ weights.T + self.biases[used]  # (N, K)
        scores = np.zeros((len(texts), len(images)))
        for at, things in enumerate(senses):
            for rows in things:
                likeliest = log_odds[:, [column[row] for row in rows]].max(axis=1)
                scores[at] -= np.logaddexp(0.0, -likeliest)
        return scores

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
