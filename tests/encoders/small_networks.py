"""Small networks with random weights under the names of pretrained ones, and images of noise."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from capsearch.encoders.train.networks import LITES, NETWORKS, EfficientNetLite

SMALL = replace(LITES["lite0"], input_size=64)


@cache
def small_network():
    """Random weights of a scale at which different images have different features."""
    torch.manual_seed(5)
    made = EfficientNetLite(SMALL).eval().requires_grad_(False)
    for part in made.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return made


@pytest.fixture
def network(monkeypatch):
    """The small network, under the name lite0."""
    small = replace(NETWORKS["lite0"], input_size=SMALL.input_size, load=small_network)
    monkeypatch.setitem(NETWORKS, "lite0", small)
    return small_network()


def noise(count, size=64):
    """Images of noise, each darker than the one before."""
    drawn = np.random.default_rng(1).integers(0, 256, (count, size, size, 3))
    return (drawn / np.arange(1, count + 1)[:, None, None, None]).astype(np.uint8)
