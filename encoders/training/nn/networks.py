"""The networks that can be fine-tuned, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from capsearch.encoders.training.nn import tinyvit
from capsearch.encoders.training.nn.efficientnet import FEATURES, LITES, load_imagenet
from capsearch.encoders.training.nn.trunk import Architecture
from capsearch.engine.errors import TrainingProblem

NETWORKS: Mapping[str, Architecture] = {
    **{
        name: Architecture(
            title=f"EfficientNet-{name}, batch norm folded",
            input_size=lite.input_size,
            features=FEATURES,
            first_trained=lite.first_trained,
            source=f"ImageNet weights, sha256 {lite.sha256}, Apache-2.0",
            load=partial(load_imagenet, name),
            crops=True,
        )
        for name, lite in LITES.items()
    },
    "tinyvit": Architecture(
        title="TinyViT-5M, batch norm folded",
        input_size=tinyvit.INPUT_SIZE,
        features=tinyvit.FEATURES,
        first_trained=9,  # the last three blocks of the third stage, and the fourth
        source=f"ImageNet-22k weights of its authors (Microsoft, MIT), {tinyvit.SOURCE}",
        load=tinyvit.load_pretrained,
        crops=False,  # windows have a fixed size
    ),
}


def network(name: str) -> Architecture:
    """TrainingProblem for a name that is not in the table."""
    if name not in NETWORKS:
        raise TrainingProblem(f"no network called '{name}'; there is {', '.join(NETWORKS)}")
    return NETWORKS[name]


def network_of(title: str, backbone: str) -> str:
    """The name of the network that a backbone's card has as its architecture."""
    for name, one in NETWORKS.items():
        if one.title == title:
            return name
    raise TrainingProblem(
        f"{backbone} has an unknown architecture ({title}); only {', '.join(NETWORKS)} can be "
        "fine-tuned"
    )
