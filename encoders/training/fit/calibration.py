"""Calibration of a trained model's vectors on validation."""

from __future__ import annotations

import numpy as np

from capsearch.encoders.calibration.vectors import Calibration, CaptionVectors, fit_vectors
from capsearch.encoders.hubness import QueryBank
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, TrainingSet, encode, project


def calibrate(model: DualEncoder, bank: QueryBank, validation: TrainingSet) -> Calibration:
    """Hubness penalties and weights of CL and CLM that validate best."""
    captions = {
        language: CaptionVectors.of(
            captions.image_rows,
            encode(model, captions, language),
            captions.sentence.astype(np.float32),
        )
        for language, captions in validation.captions.items()
        if len(captions.image_rows)
    }
    return fit_vectors(project(model, validation), captions, validation.captions, bank)
