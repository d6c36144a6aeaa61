"""Training data, the trainer, validation, calibration and pruning."""
