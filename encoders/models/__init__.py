"""Models that serve: folders, the registry, encoders, taggers and captioners. No torch."""
