"""How the models are made. Needs the `train` extra (torch); nothing outside imports it eagerly.

Training data, the trainer, validation, calibration and pruning.

Networks and losses, in torch.

Whole training runs as the commands start them; export and import of model folders.
"""
