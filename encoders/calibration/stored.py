"""Where calibrations of models are: this user's own, or the one that a model came with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsearch.encoders import model_folder, models
from capsearch.encoders.evidence import BANK_FILE, DocumentBank, StoredEvidence
from capsearch.encoders.models import Model
from capsearch.engine.errors import UnknownModel


def calibration_folder(folder: Path, card: Mapping[str, Any]) -> Path:
    """Where a model's evidence calibration lies: one made by this user first, or the model's."""
    own = own_calibration(str(card["name"]), models.stored_digest(folder, card))
    return own if own.is_dir() else folder


def own_calibration(name: str, digest: str) -> Path:
    """Where this user's calibration of a model is."""
    file_name = re.sub(r"[^\w.+-]+", "-", name)  # of open_clip:ORG/NAME too
    return models.user_models_dir() / "calibrations" / f"{file_name}@{digest}"


def is_calibrated(model: Model) -> bool:
    """Whether its scores are probabilities for queries of some language."""
    return any(model.text.evidence_model("", one) is not None for one in model.text.languages)


def stored_bank(name: str | None = None) -> DocumentBank:
    """The unrelated documents that a model was calibrated with; UnknownModel if it was not."""
    name = name or models.DEFAULT_MODEL
    folder = models.find(name, *models.searching_kinds())
    calibrated = calibration_folder(folder, model_folder.read_card(folder))
    if not (calibrated / BANK_FILE).is_file():
        raise UnknownModel(f"{name} is not calibrated: run `capsearch calibrate`")
    return StoredEvidence(calibrated).bank
