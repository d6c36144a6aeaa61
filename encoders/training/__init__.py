"""How the models are made. Needs the `train` extra (torch); nothing outside imports it eagerly."""
