"""A calibration run: from captioned images to a model's evidence file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from capsearch.encoders.calibrate.collection import (
    NO_HEADS,
    EncodedImages,
    as_indexed,
    encode_images,
    encode_labelled,
)
from capsearch.encoders.calibrate.fit import document_bank, fit_evidence
from capsearch.encoders.calibrate.vectors import (
    CAPTIONS_PER_LANGUAGE,
    CaptionVectors,
    cluster_bank,
    fit_vectors,
)
from capsearch.encoders.data.dataset import read, read_labelled
from capsearch.encoders.data.features import FeatureCache, Report, default_cache, load_features
from capsearch.encoders.models import calibration, registry
from capsearch.encoders.models.calibration import ConceptClassifiers
from capsearch.encoders.models.clip import ClipTextEncoder, calibrated, save_settings
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.text import own_calibration
from capsearch.encoders.settings import CalibrationRun
from capsearch.encoders.text import concepts
from capsearch.engine.errors import DataProblem
from capsearch.engine.evidence import LengthDependent
from capsearch.engine.protocols import Enricher
from capsearch.engine.records import LANGUAGES, Vectors
from capsearch.engine.vectors import strip_bias

BANK_IMAGES = 4000  # of the training split, from which the bank is drawn
LABELLED_SPLIT = "val"  # of encoders.data.labels: neither trained on nor reported


def calibrate(run: CalibrationRun, report: Report | None = None) -> Mapping[str, LengthDependent]:
    """Fits what evidence is worth to a model and writes it; DataProblem without captions.

    Where its backbone has a tagger, classifiers of concepts are distilled from it first.
    """
    model = registry.load(run.model)
    folder = run.output or own_calibration(model.name, str(model.card.get("digest", model.digest)))
    cache = FeatureCache(run.cache or default_cache())
    mean = None
    if run.like:
        # Reduced images and full-size ones differ in the mean of their features, and little else.
        mean = load_features(model.image, read(run.like), cache, report)[1].mean(axis=0)
    validation = _encoded(model, run, run.split, None, cache, report, mean, model.enricher())
    if not validation.captions:
        raise DataProblem(f"split '{run.split}' has no captions the model reads")
    general = _encoded(model, run, run.bank_split, BANK_IMAGES, cache, report, mean)
    if isinstance(model.text, ClipTextEncoder):
        # Its penalties and weights were not fitted when it was trained.
        model = _with_fitted_vectors(model, validation, general, folder)
        validation, general = (as_indexed(model, data) for data in (validation, general))
    bank = document_bank(general)
    classifiers = _classifiers(model, run, cache, report, mean)
    validation = replace(validation, classifiers=classifiers)
    labels = sorted({label for objects in validation.objects for label in objects})
    labelled = None
    if run.labelled:
        chosen = read_labelled(run.labelled, run.all_concepts).split(LABELLED_SPLIT)
        labelled = encode_labelled(model, chosen, cache, report, model.enricher())
        labelled = replace(labelled, data=replace(labelled.data, classifiers=classifiers))
    objects = objects_of(validation)
    fitted = fit_evidence(model.text, validation, bank, names_of(labels), labelled, objects)
    calibration.save(folder, fitted, bank, objects, classifiers)
    return fitted


def _classifiers(
    model: Model,
    run: CalibrationRun,
    cache: FeatureCache,
    report: Report | None,
    mean: Vectors | None,
) -> ConceptClassifiers | None:
    """Distilled from the tagger on the images of the bank's split and on labelled training images.

    None without a tagger.
    """
    from capsearch.encoders.calibrate.distil import Tagged, distil  # torch

    tagger = model.enricher().tagger
    if tagger is None:
        return None
    data = read(run.data, splits=[run.bank_split])
    tagged = Tagged.of(model, tagger, load_features(model.image, data, cache, report)[1], mean)
    if run.labelled:
        data = read_labelled(run.labelled, run.all_concepts).split("train")
        tagged += Tagged.of(model, tagger, load_features(model.image, data, cache, report)[1])
    return distil(tagged.ids, tagged.probabilities, tagged.images)


def _with_fitted_vectors(
    model: Model, validation: EncodedImages, general: EncodedImages, folder: Path
) -> Model:
    """The model with hubness penalties and weights of CL and CLM, which are written first."""
    text = model.text
    assert isinstance(text, ClipTextEncoder)

    def vectors(data: EncodedImages) -> dict[str, CaptionVectors]:
        return {
            language: CaptionVectors.of(
                of_language.image_rows,
                strip_bias(of_language.visual),
                text.sentences.encode(of_language.texts),
            )
            for language, of_language in data.captions.items()
        }

    captions = [
        of_language.some(CAPTIONS_PER_LANGUAGE) for of_language in vectors(general).values()
    ]
    if not captions:
        raise DataProblem("calibration needs images with captions for its bank")
    bank = cluster_bank(
        np.concatenate([of_language.visual for of_language in captions]),
        np.concatenate([of_language.sentence for of_language in captions]),
        seed=0,
    )
    images = strip_bias(validation.images)
    fitted = fit_vectors(images, vectors(validation), text.languages, bank)
    folder.mkdir(parents=True, exist_ok=True)
    bank.save(folder)
    save_settings(folder, fitted)
    return calibrated(model, folder)


def names_of(labels: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Names of labels by language, from the concept table; a label it lacks names itself."""
    names: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
    for label in labels:
        names["en"][label] = label
        known = concepts.likeliest(label)
        for language in LANGUAGES:
            if known and language != "en":
                names[language][label] = known.name(language)
    return names


def objects_of(data: EncodedImages) -> frozenset[str]:
    """The ids of the concepts that people labelled images with."""
    labels = {label for objects in data.objects for label in objects}
    return frozenset(known.id for label in labels if (known := concepts.likeliest(label)))


def _encoded(
    model: Model,
    run: CalibrationRun,
    split: str,
    limit: int | None,
    cache: FeatureCache,
    report: Report | None,
    mean: Vectors | None = None,
    enricher: Enricher = NO_HEADS,
) -> EncodedImages:
    data = read(run.data, splits=[split])
    chosen = data if limit is None else data.first(limit)
    return encode_images(model, chosen, cache, report, enricher, mean)
