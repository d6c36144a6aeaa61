"""The folder of a backbone whose upper blocks were trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from capsearch.encoders import model_folder
from capsearch.encoders.training.nn.backbone import LowerBlocks, UpperBlocks
from capsearch.encoders.training.nn.networks import network
from capsearch.encoders.training.runs.onnx_export import export_backbone


def write_backbone(
    lower: LowerBlocks, upper: nn.Module, folder: Path, card: Mapping[str, object], made: str
) -> str:
    """Write both halves as one network and return its digest; `made` says how it was trained."""
    assert isinstance(upper, UpperBlocks)
    chosen = network(lower.name)
    full_card = {**card, "description": f"{lower.name}, {made}", "architecture": chosen.title}
    size = chosen.input_size
    export_backbone(lower.network, size, upper.mean, upper.deviation, folder, full_card)
    return str(model_folder.read_card(folder)["digest"])
