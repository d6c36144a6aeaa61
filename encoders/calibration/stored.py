"""Where calibrations of models are: this user's own, or the one that a model came with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsearch.encoders import models
from capsearch.encoders.evidence import StoredEvidence
from capsearch.encoders.models import Model
from capsearch.encoders.text_encoder import CalibratedTextEncoder
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


def stored_evidence(model: Model) -> StoredEvidence:
    """What calibration made for a model; UnknownModel if it never ran."""
    if not isinstance(model.text, CalibratedTextEncoder) or not is_calibrated(model):
        command = f"capsearch calibrate --model {model.name} --data DIR"
        raise UnknownModel(f"{model.name} is not calibrated: run `{command}`")
    return model.text.evidence
