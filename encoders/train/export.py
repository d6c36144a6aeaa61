"""Model folders from what was trained, which `encoders.models.registry` opens without torch.

And the way back: served models as torch modules, to fine-tune them or to train on top of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.hubness import QueryBank
from capsearch.encoders.models.image import GRID
from capsearch.encoders.models.w2vv import LanguageEncoder
from capsearch.encoders.text.tokenizers import ChineseTokenizer
from capsearch.encoders.train.backbone import LowerBlocks, UpperBlocks, upper_blocks_of
from capsearch.encoders.train.captions import Vocabulary
from capsearch.encoders.train.decoders import numpy_of
from capsearch.encoders.train.dual_encoder import DualEncoder
from capsearch.encoders.train.graphs import halve, to_onnx, weights_of
from capsearch.encoders.train.networks import Trunk, network
from capsearch.encoders.train.w2vv import (
    ImageProjection,
    LanguageBranch,
    Pooling,
    TextConfig,
    TextNetwork,
)
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import Vectors

PROJECTION = "image.safetensors"
TRAINED_BIAS = "trained_b"  # of a projection that was moved since (`move_projection`)
OUTPUTS = ("features", GRID)  # of a backbone's graph


def export_text(
    model: DualEncoder,
    vocabularies: Mapping[str, Vocabulary],
    bank: QueryBank,
    folder: Path,
    card: Mapping[str, Any],
) -> None:
    """Write a text model; `card` is model.json without kind and digest."""
    assert isinstance(model.text, TextNetwork)
    config = model.text.config
    folder.mkdir(parents=True, exist_ok=True)
    export_projection(model.image, folder)
    bank.save(folder)
    shared = {
        "sentence_W": numpy_of(model.text.sentence.weight) * ("sentence" in config.inputs),
        "out_W": numpy_of(model.text.out.weight),
        "out_b": numpy_of(model.text.out.bias),
    }
    model_folder.save_arrays(folder / "shared.safetensors", shared)
    for language, vocabulary in vocabularies.items():
        branch = model.text.branches[language]
        assert isinstance(branch, LanguageBranch)
        arrays = {name: numpy_of(value) for name, value in _stored_parts(branch)}
        # Columns of inputs that were not chosen are zero, as in training.
        arrays["mix_W"] = arrays["mix_W"] * numpy_of(branch.used)
        model_folder.save_arrays(folder / f"{language}.safetensors", arrays)
        _write_vocabulary(folder / f"{language}.json", vocabulary, config.pooling)
    finish_card(folder, card)


def export_projection(projection: ImageProjection, folder: Path) -> None:
    """Write the image projection: features into the shared space."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "image_W": numpy_of(projection.linear.weight),
        "image_b": numpy_of(projection.linear.bias),
    }
    model_folder.save_arrays(folder / PROJECTION, arrays)


def finish_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write model.json with a digest over the files and over the fields that change vectors."""
    keys = ("backbone_digest", "sentence", "text_digest", "sentence_weight", "hubness")
    fields = [json.dumps(card[key], sort_keys=True) for key in keys if key in card]
    digest = model_folder.digest(folder, *fields)
    model_folder.write_card(folder, {"kind": "text", **card, "digest": digest})


# The arrays of a language's file, and the parameters of its branch that they are.
_PARAMETERS = {
    "bow": "bow.weight",
    "words": "words.weight",
    "gru_Wx": "gru.weight_ih_l0",
    "gru_Wh": "gru.weight_hh_l0",
    "gru_bx": "gru.bias_ih_l0",
    "gru_bh": "gru.bias_hh_l0",
    "attention_W": "attention.weight",
    "attention_b": "attention.bias",
    "mix_W": "mix.weight",
    "mix_b": "mix.bias",
}


def _stored_parts(branch: LanguageBranch) -> Iterator[tuple[str, Tensor]]:
    """What is stored of a branch by name, as views of its parameters."""
    parameters = dict(branch.named_parameters())
    for name, parameter in _PARAMETERS.items():
        value: Tensor = parameters[parameter]
        if name in ("bow", "words"):
            value = value[:-1]  # the last row is padding
        yield name, value[0] if name == "attention_W" else value


def _write_vocabulary(path: Path, vocabulary: Vocabulary, pooling: str) -> None:
    stored: dict[str, Any] = {
        "pooling": pooling,
        "tokenizer": vocabulary.tokenizer.version,
        "vocabulary": vocabulary.words,
    }
    tokenizer = vocabulary.tokenizer
    if isinstance(tokenizer, ChineseTokenizer) and tokenizer.dictionary is not None:
        stored["dictionary"] = asdict(tokenizer.dictionary)
    path.write_text(json.dumps(stored, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def text_source(name: str) -> str:
    """The model whose text encoders a search model uses: its own, or those its card names."""
    return str(model_folder.read_card(registry.find(name, "text")).get("text", name))


def load_text(name: str) -> tuple[TextNetwork, dict[str, Vocabulary]]:
    """A text model's encoders with their served weights, and their vocabularies."""
    folder = registry.find(name, "text")
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
            for name, value in _stored_parts(branch):
                _put(value, encoder.arrays[name])
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
    weights = weights_of(folder / "backbone.onnx")
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


class StandardisedBackbone(nn.Module):
    """The graph of a served backbone: uint8 pixels in, features and feature map out."""

    def __init__(self, network: Trunk, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.network = network
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """(N, S, S, 3) uint8 -> (N, F) standardised features, (N, G, F) feature map."""
        cells = self.network.feature_map(self.network.lower(self.network.scale(pixels), 0), 0)
        features = cells.mean((2, 3))
        return (features - self.mean) / self.deviation, cells.flatten(2).transpose(1, 2)


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


def export_backbone(
    network: Trunk,
    size: int,
    mean: Tensor,
    deviation: Tensor,
    folder: Path,
    card: dict[str, Any],
) -> None:
    """Write a backbone folder; its float16 weights are cast to float32 when a session opens."""
    folder.mkdir(parents=True, exist_ok=True)
    served = StandardisedBackbone(network, mean, deviation).eval().requires_grad_(False)
    to_onnx(served, size, folder / "backbone.onnx", OUTPUTS)
    _halve_file(folder / "backbone.onnx")
    common = {"kind": "backbone", "input_size": size, "dimension": len(mean)}
    model_folder.write_card(folder, {**common, **card, "digest": model_folder.digest(folder)})


def _halve_file(path: Path) -> None:
    import onnx

    model = onnx.load(path)
    halve(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def move_projection(folder: Path, offset: Vectors, images: int) -> None:
    """Have a search model serve images whose mean features differ from those of training.

    Captioned data sets come as reduced copies. The features of reduced and of full-size photographs
    differ in their mean and little else, so the projection is moved by that `offset`, measured on
    so many `images`. Hubness penalties and weights stay right: they were fitted on validation
    images with the projection as trained.
    """
    stored = model_folder.Arrays(folder / PROJECTION)
    trained = stored["image_b"]
    arrays = {
        "image_W": stored["image_W"],
        "image_b": trained - stored["image_W"] @ offset,
        TRAINED_BIAS: trained,
    }
    model_folder.save_arrays(folder / PROJECTION, arrays)
    card = {**model_folder.read_card(folder)}
    for key in ("schema", "kind", "digest"):
        card.pop(key)
    card["image_offset"] = f"moved to the mean features of {images:,} images"
    finish_card(folder, card)
