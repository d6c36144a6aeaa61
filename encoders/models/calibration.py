"""What evidence is worth to a model: fitted by calibration, kept beside the model.

`evidence.json` holds evidence models for each query language and the objects it was fitted on,
`document_bank.safetensors` a few hundred unrelated images and captions. What a query scores on the
bank is its background: cosines of different queries do not compare, but each does with its own
background. Classifiers of concepts lie beside them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders import atomic
from capsearch.encoders.models.model_folder import Arrays, save_arrays
from capsearch.encoders.text import concepts
from capsearch.encoders.text.concepts.mentions import mentioned
from capsearch.engine.errors import UnknownModel
from capsearch.engine.evidence import (
    EvidenceModel,
    Floats,
    KindWeights,
    LengthDependent,
    NamedConcepts,
)
from capsearch.engine.records import EncodedText, Source, Vectors

FILE, BANK_FILE, SCHEMA = "evidence.json", "document_bank.safetensors", 1
NAMES_FILE, WEIGHTS_FILE = "classifiers.json", "classifiers.safetensors"
BEST = 3  # documents of the bank whose mean score is a query's background


@dataclass(frozen=True)
class DocumentBank:
    """Unrelated images (K, D) and captions (L, C), as an index holds them."""

    images: Vectors
    captions: Vectors

    def background(self, encoded: EncodedText, row: int = 0) -> Mapping[Source, float]:
        """The mean of a query's best scores on images and on captions of the bank."""
        return {
            "image": float(best_scores(self.images @ encoded.visual[row])),
            "caption": float(best_scores(self.captions @ encoded.caption[row])),
        }

    def named_background(self, named: NamedConcepts) -> float:
        """The mean of the best scores that classifiers give images of the bank."""
        products = self._wide_images @ named.weights.T.astype(np.float64)  # (N, D) x (D, K)
        return float(best_scores(named.of_products(products) / named.weight))

    @cached_property
    def _wide_images(self) -> NDArray[np.float64]:
        return self.images.astype(np.float64)

    def save(self, folder: Path) -> None:
        """Write it beside a model's other arrays."""
        save_arrays(folder / BANK_FILE, {"images": self.images, "captions": self.captions})


def best_scores(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """(..., N) -> (...) the mean of the best; 0 of none."""
    if not scores.shape[-1]:
        return np.zeros(scores.shape[:-1])
    return np.asarray(np.sort(scores, axis=-1)[..., -BEST:].mean(axis=-1), np.float64)


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
        return {concept: row for row, concept in enumerate(self.ids)}

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


@dataclass(frozen=True)
class StoredEvidence:
    """The calibration in a folder, read when first needed."""

    folder: Path

    def model(self, language: str) -> LengthDependent | None:
        """What was fitted for queries in a language; None where nothing was."""
        return self._models.get(language)

    @cached_property
    def bank(self) -> DocumentBank:
        """The unrelated documents."""
        stored = Arrays(self.folder / BANK_FILE)
        return DocumentBank(stored["images"], stored["captions"])

    def named(self, things: Sequence[frozenset[str]]) -> NamedConcepts | None:
        """Classifiers of the things that a query names (`mentioned`); None where there are none."""
        named = self.classifiers.named(things) if self.classifiers else None
        return named and replace(named, background=self.bank.named_background(named))

    @cached_property
    def classifiers(self) -> ConceptClassifiers | None:
        """Those of concepts in the space of image vectors; None where none were fitted."""
        return ConceptClassifiers.load(self.folder)

    def is_rare(self, things: Sequence[frozenset[str]]) -> bool:
        """Whether a query that names these names none of the objects that names were fitted on."""
        return bool(self._objects) and all(ids.isdisjoint(self._objects) for ids in things)

    @cached_property
    def _models(self) -> Mapping[str, LengthDependent]:
        return {
            name: LengthDependent(
                _parse(fitted["short"]),
                _parse(fitted["long"]),
                *(
                    _parse(fitted[sort]) if fitted.get(sort) else None
                    for sort in ("unfamiliar", "rare")
                ),
            )
            for name, fitted in self._stored.get("languages", {}).items()
        }

    @cached_property
    def _objects(self) -> frozenset[str]:
        return frozenset(self._stored.get("objects", ()))

    @cached_property
    def _stored(self) -> Mapping[str, Any]:
        path = self.folder / FILE
        if not path.is_file():
            return {}
        stored: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if stored.get("schema", 0) > SCHEMA:
            raise UnknownModel(
                f"{path} was made by a newer capsearch; run `pip install -U capsearch`"
            )
        return stored


def save(
    folder: Path,
    models: Mapping[str, LengthDependent],
    bank: DocumentBank,
    objects: Collection[str] = (),
    classifiers: ConceptClassifiers | None = None,
) -> None:
    """Write a calibration; its arrays first, so that no reader finds weights without them.

    `objects` are the ids of the concepts whose names short queries were fitted on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bank.save(folder)
    if classifiers is not None:
        classifiers.save(folder)
    content = {
        "schema": SCHEMA,
        "languages": {name: asdict(fitted) for name, fitted in models.items()},
        "objects": sorted(objects),
    }
    atomic.write_text(folder / FILE, json.dumps(content, indent=1) + "\n")


def _parse(stored: Mapping[str, object]) -> EvidenceModel:
    kinds, offsets = stored["kinds"], stored["caption_offsets"]
    assert isinstance(kinds, dict) and isinstance(offsets, dict)
    return EvidenceModel(
        kinds={name: KindWeights(**kind) for name, kind in kinds.items()},
        size=int(str(stored["size"])),
        size_exponent=float(str(stored["size_exponent"])),
        cutoff=float(str(stored["cutoff"])),
        tail_cutoff=float(str(stored["tail_cutoff"])),
        caption_offsets=dict(offsets),
        described_cutoff=float(str(stored.get("described_cutoff", 0.0))),
        concept_weight=float(str(stored.get("concept_weight", 0.0))),
    )
