"""What evidence is worth to a model: fitted by calibration, kept beside the model.

`evidence.json` holds evidence models for each query language and the objects it was fitted on,
`document_bank.safetensors` a few hundred unrelated images and captions. What a query scores on the
bank is its background: cosines of different queries do not compare, but each does with its own
background. Classifiers of concepts lie beside them (encoders.models.classifiers).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders import atomic
from capsearch.encoders.models.classifiers import ConceptClassifiers
from capsearch.encoders.models.model_folder import Arrays, save_arrays
from capsearch.engine.errors import UnknownModel
from capsearch.engine.evidence import EvidenceModel, KindWeights, LengthDependent, NamedConcepts
from capsearch.engine.records import EncodedText, Source, Vectors

FILE, BANK_FILE, SCHEMA = "evidence.json", "document_bank.safetensors", 1
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
                _parse(one["short"]),
                _parse(one["long"]),
                *(_parse(one[sort]) if one.get(sort) else None for sort in ("unfamiliar", "rare")),
            )
            for name, one in self._stored.get("languages", {}).items()
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
        "languages": {name: asdict(one) for name, one in models.items()},
        "objects": sorted(objects),
    }
    atomic.write_text(folder / FILE, json.dumps(content, indent=1) + "\n")


def _parse(stored: Mapping[str, object]) -> EvidenceModel:
    kinds, offsets = stored["kinds"], stored["caption_offsets"]
    assert isinstance(kinds, dict) and isinstance(offsets, dict)
    return EvidenceModel(
        kinds={name: KindWeights(**one) for name, one in kinds.items()},
        size=int(str(stored["size"])),
        size_exponent=float(str(stored["size_exponent"])),
        cutoff=float(str(stored["cutoff"])),
        tail_cutoff=float(str(stored["tail_cutoff"])),
        caption_offsets=dict(offsets),
        described_cutoff=float(str(stored.get("described_cutoff", 0.0))),
        concept_weight=float(str(stored.get("concept_weight", 0.0))),
    )
