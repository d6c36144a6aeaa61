"""What a training run does between the data and the model: trainer, validation, calibration."""
