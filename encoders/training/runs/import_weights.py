"""Served models as torch modules: to continue fine-tuning, or to train a projection on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from capsearch.encoders import model_folder, models
from capsearch.encoders.text import LanguageEncoder
from capsearch.encoders.training.fit.corpus import Vocabulary
from capsearch.encoders.training.nn.backbone import LowerBlocks, UpperBlocks, upper_blocks_of
from capsearch.encoders.training.nn.w2vv import (
    ImageProjection,
    LanguageBranch,
    Pooling,
    TextConfig,
    TextNetwork,
)
from capsearch.encoders.training.runs.export import PROJECTION, TRAINED_BIAS
from capsearch.engine.errors import TrainingProblem

_GRU = {
    "gru_Wx": "weight_ih_l0",
    "gru_Wh": "weight_hh_l0",
    "gru_bx": "bias_ih_l0",
    "gru_bh": "bias_hh_l0",
}


def text_source(name: str) -> str:
    """The model whose text encoders a search model uses: its own, or those its card names."""
    return str(model_folder.read_card(models.find(name, "text")).get("text", name))


def load_text(name: str) -> tuple[TextNetwork, dict[str, Vocabulary]]:
    """A text model's encoders with their served weights, and their vocabularies."""
    folder = models.find(name, "text")
    card = model_folder.read_card(folder)
    shared = model_folder.Arrays(folder / "shared.safetensors")
    served = {language: LanguageEncoder(language, folder) for language in card["languages"]}
    vocabularies = {
        language: Vocabulary(language, tuple(encoder.stored["vocabulary"]), encoder.tokenizer)
        for language, encoder in served.items()
    }
    config = _config(next(iter(served.values())), shared)
    sizes = {language: len(vocabulary.words) for language, vocabulary in vocabularies.items()}
    network = TextNetwork(sizes, int(card["dimension"]), config)
    with torch.no_grad():
        _put(network.sentence.weight, shared["sentence_W"])
        _put(network.out.weight, shared["out_W"])
        _put(network.out.bias, shared["out_b"])
        for language, encoder in served.items():
            branch = network.branches[language]
            assert isinstance(branch, LanguageBranch)
            _fill(branch, encoder.arrays)
    return network.eval(), vocabularies


def _config(encoder: LanguageEncoder, shared: model_folder.Arrays) -> TextConfig:
    """The widths and the pooling, which all languages of a model share."""
    arrays = encoder.arrays
    return TextConfig(
        pooling=cast(Pooling, encoder.stored["pooling"]),
        bow_width=arrays["bow"].shape[1],
        word_width=arrays["words"].shape[1],
        gru_width=arrays["gru_Wh"].shape[1],
        sentence_width=shared["sentence_W"].shape[1],
        hidden=shared["sentence_W"].shape[0],
    )


def _fill(branch: LanguageBranch, arrays: model_folder.Arrays) -> None:
    _put(branch.bow.weight[:-1], arrays["bow"])
    _put(branch.words.weight[:-1], arrays["words"])
    for stored, name in _GRU.items():
        _put(getattr(branch.gru, name), arrays[stored])
    _put(branch.attention.weight[0], arrays["attention_W"])
    _put(branch.attention.bias, arrays["attention_b"])
    _put(branch.mix.weight, arrays["mix_W"])
    _put(branch.mix.bias, arrays["mix_b"])


def _put(target: Tensor, values: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    target.copy_(torch.from_numpy(values))


def load_projection(folder: Path, into: ImageProjection) -> None:
    """Copy a text model's image projection into a module, as it was trained."""
    stored = model_folder.Arrays(folder / PROJECTION)
    with torch.no_grad():
        _put(into.linear.weight, stored["image_W"])
        _put(into.linear.bias, stored[TRAINED_BIAS if TRAINED_BIAS in stored else "image_b"])


def load_upper_blocks(folder: Path, lower: LowerBlocks) -> UpperBlocks:
    """A served backbone's upper blocks, loaded into the network of `lower`.

    The lower blocks are never trained, so activations of `lower` are valid for every backbone
    made from the same pretrained network. TrainingProblem for a graph without their weights.
    """
    weights = _weights(folder / "backbone.onnx")
    upper_blocks = upper_blocks_of(lower, weights["mean"], weights["deviation"])
    frozen = tuple(f"blocks.{number}." for number in range(upper_blocks.start))
    state = lower.network.state_dict()
    upper = [name for name in state if not name.startswith(("stem.", *frozen))]
    missing = [name for name in upper if f"network.{name}" not in weights]
    if missing:
        raise TrainingProblem(
            f"{folder} cannot be fine-tuned: its graph has no weights called {missing[0]}; start "
            f"from {lower.name} instead"
        )
    stored = {name: weights[f"network.{name}"] for name in upper}
    lower.network.load_state_dict({**state, **stored})
    return upper_blocks


def _weights(path: Path) -> dict[str, Tensor]:
    """A backbone's weights by their names in torch, as float32.

    Both of torch's exporters name initializers so; what else they add (constants) has no
    counterpart in torch and is ignored by the caller.
    """
    import onnx
    from onnx import numpy_helper

    return {
        weight.name.removesuffix(".half"): torch.tensor(numpy_helper.to_array(weight)).float()
        for weight in onnx.load(path).graph.initializer
    }
