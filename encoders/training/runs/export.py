"""From a trained DualEncoder to a model folder that `encoders.models` opens without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders import model_folder
from capsearch.encoders.hubness import QueryBank
from capsearch.encoders.tokenizers import ChineseTokenizer
from capsearch.encoders.training.fit.corpus import Vocabulary
from capsearch.encoders.training.nn.caption_decoders import numpy_of
from capsearch.encoders.training.nn.dual_encoder import DualEncoder
from capsearch.encoders.training.nn.w2vv import ImageProjection, LanguageBranch, TextNetwork

PROJECTION = "image.safetensors"
TRAINED_BIAS = "trained_b"  # of a projection that was moved since (runs.image_offset)


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
        model_folder.save_arrays(folder / f"{language}.safetensors", _branch_arrays(branch))
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


def _branch_arrays(branch: LanguageBranch) -> dict[str, NDArray[np.float32]]:
    return {
        "bow": numpy_of(branch.bow.weight)[:-1],  # the last row is padding
        "words": numpy_of(branch.words.weight)[:-1],
        "gru_Wx": numpy_of(branch.gru.weight_ih_l0),
        "gru_Wh": numpy_of(branch.gru.weight_hh_l0),
        "gru_bx": numpy_of(branch.gru.bias_ih_l0),
        "gru_bh": numpy_of(branch.gru.bias_hh_l0),
        "attention_W": numpy_of(branch.attention.weight)[0],
        "attention_b": numpy_of(branch.attention.bias),
        # Columns of inputs that were not chosen are zero, as in training.
        "mix_W": numpy_of(branch.mix.weight) * numpy_of(branch.used),
        "mix_b": numpy_of(branch.mix.bias),
    }


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
