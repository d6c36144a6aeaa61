"""Image files: opened safely, recognised by their bytes, turned into what encoders take."""
