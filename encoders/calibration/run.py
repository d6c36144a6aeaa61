"""A calibration run: from captioned images to a model's evidence file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from capsearch.encoders import concepts, evidence, models
from capsearch.encoders.calibration.collection import NO_HEADS, EncodedImages, encode_images
from capsearch.encoders.calibration.fit import document_bank, fit_evidence
from capsearch.encoders.datasets.captioned import Source
from capsearch.encoders.datasets.dataset import read
from capsearch.encoders.datasets.features import FeatureCache, Report, default_cache
from capsearch.encoders.models import Model
from capsearch.engine.errors import DataProblem
from capsearch.engine.evidence_model import LengthDependent
from capsearch.engine.protocols import Enricher
from capsearch.engine.records import LANGUAGES

BANK_IMAGES = 4000  # of the training split, from which the bank is drawn


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """What a run reads and writes. `output` None: this user's calibration of the model."""

    sources: tuple[Source | Path | str, ...]
    model: str | None = None
    split: str = "val"
    bank_split: str = "train"
    cache: Path | None = None
    output: Path | None = None


def calibrate(run: CalibrationRun, report: Report | None = None) -> Mapping[str, LengthDependent]:
    """Fits what evidence is worth to a model and writes it; DataProblem without captions."""
    model = models.load(run.model)
    cache = FeatureCache(run.cache or default_cache())
    validation = _encoded(model, run, run.split, None, cache, report, model.enricher())
    if not validation.captions:
        raise DataProblem(f"split '{run.split}' has no captions the model reads")
    bank = document_bank(_encoded(model, run, run.bank_split, BANK_IMAGES, cache, report))
    labels = sorted({label for found in validation.objects for label in found})
    fitted = fit_evidence(model.text, validation, bank, names_of(labels))
    evidence.save(run.output or _own_folder(model), fitted, bank)
    return fitted


def names_of(labels: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Names of labels by language, from the concept table; a label it lacks names itself."""
    found: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
    for label in labels:
        found["en"][label] = label
        known = concepts.likeliest(label)
        for language in LANGUAGES:
            if known and language != "en":
                found[language][label] = known.name(language)
    return found


def _encoded(
    model: Model,
    run: CalibrationRun,
    split: str,
    limit: int | None,
    cache: FeatureCache,
    report: Report | None,
    enricher: Enricher = NO_HEADS,
) -> EncodedImages:
    data = read(run.sources, splits=[split])
    chosen = data if limit is None else data.first(limit)
    return encode_images(model, chosen, cache, report, enricher)


def _own_folder(model: Model) -> Path:
    return models.user_models_dir() / "calibrations" / f"{model.name}@{model.digest}"
