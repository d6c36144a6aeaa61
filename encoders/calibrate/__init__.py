"""What evidence is worth to a model, fitted on validation images: needs no torch."""
