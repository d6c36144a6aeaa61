"""Folders with small open_clip models of random weights, and their tokenizers.

python tests/small_clip.py ViT-B-32 DIR                     of real size, to measure speed
python tests/small_clip.py xlm-roberta-base-ViT-B-32 DIR
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

needs_open_clip = pytest.mark.skipif(
    find_spec("open_clip") is None, reason="needs the extra `clip`"
)
SENTENCES = (
    "a red wall", "a green wall and a blue car", "a yellow dog runs", "two black cats",
    "红色的墙", "绿色的墙和蓝色的汽车", "一只黄色的狗在跑", "两只黑猫",
    "赤い壁", "緑の壁と青い車", "黄色い犬が走る", "黒い猫が二匹",
)  # fmt: skip
VISION = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32}
NATIVE = {"context_length": 40, "vocab_size": 200, "width": 64, "heads": 2, "layers": 2}
SIGLIP = {**NATIVE, "no_causal_mask": True, "pool_type": "last", "proj_bias": True}
# Text towers of every form that open_clip has.
TEXT_TOWERS: dict[str, dict[str, Any]] = {
    "clip": {**NATIVE, "context_length": 77, "vocab_size": 49408},
    "native": {**NATIVE, "hf_tokenizer_name": "local", "pool_type": "eos", "eos_id": 2},
    "siglip": {
        **SIGLIP, "hf_tokenizer_name": "local", "tokenizer_kwargs": {"clean": "canonicalize"},
    },
    "transformers": {
        "hf_model_name": "none", "hf_tokenizer_name": "local", "hf_pooler_type": "mean_pooler",
        "hf_proj_type": "mlp", "context_length": 40,
    },
}  # fmt: skip
XLM_ROBERTA = {
    "model_type": "xlm-roberta", "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "type_vocab_size": 1,
}  # fmt: skip
SMALL_ROBERTA = {
    "vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 128, "max_position_embeddings": 60,
}  # fmt: skip
ROBERTA_BASE = {
    "vocab_size": 250002, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 514,
}  # fmt: skip


def write_tokenizer(folder: Path, sentences: Any = SENTENCES, size: int = 200) -> None:
    """A unigram tokenizer of pieces, trained on some sentences, in transformers' files."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(sentences, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def write_config(
    folder: Path, text: dict[str, Any], vision: dict[str, Any], dimension: int, **more: Any
) -> None:
    model = {"embed_dim": dimension, "vision_cfg": vision, "text_cfg": text, "custom_text": True}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": model, **more}))


def write_clip(folder: Path, tower: str = "native", seed: int = 1, **more: Any) -> Path:
    """A folder that `open_clip:PATH` opens; `more` are further keys of its config."""
    folder.mkdir(parents=True)
    text = TEXT_TOWERS[tower]
    if "hf_tokenizer_name" in text:
        write_tokenizer(folder)
    if "hf_model_name" in text:
        (folder / "config.json").write_text(json.dumps({**XLM_ROBERTA, **SMALL_ROBERTA}))
    more = {"languages": ["en", "zh", "ja"], **more}
    write_config(folder, dict(text), VISION, 32, **more)
    return write_random_weights(folder, seed)


def write_random_weights(folder: Path, seed: int = 1) -> Path:
    """Weights as a new network has them."""
    import torch
    from safetensors.torch import save_file

    from capsearch.encoders.models.open_clip import new_network, open_clip

    torch.manual_seed(seed)
    network = new_network(open_clip(), folder)
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    return folder


def write_full_size(name: str, folder: Path) -> Path:
    """An architecture of open_clip with random weights and a tokenizer of few pieces."""
    from capsearch.encoders.models.open_clip import open_clip

    folder.mkdir(parents=True)
    config = open_clip().get_model_config(name)
    if "hf_model_name" in config["text_cfg"]:
        write_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps({**XLM_ROBERTA, **ROBERTA_BASE}))
    stored = {"model_cfg": config, "languages": ["en", "zh", "ja"]}
    (folder / "open_clip_config.json").write_text(json.dumps(stored))
    return write_random_weights(folder)


if __name__ == "__main__":
    print(write_full_size(sys.argv[1], Path(sys.argv[2])))
