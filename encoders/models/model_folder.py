"""Model folders: a card (`model.json`), arrays and tables, and a digest over them; no pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import write_text
from capsearch.engine.errors import UnknownModel

SCHEMA = 1
CARD = "model.json"
LOG = "log.jsonl"  # of the training run; not part of the digest
_SCALE = ".scale"


def read_card(folder: Path) -> dict[str, Any]:
    """A folder's `model.json`; UnknownModel if it is missing, invalid or of a newer schema."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UnknownModel(f"{folder} is not a model folder: {problem}") from problem
    if not isinstance(card, dict) or "kind" not in card:
        raise UnknownModel(f"{folder}/model.json has no 'kind'")
    if card.get("schema", 0) > SCHEMA:
        raise UnknownModel(
            f"{folder} was written by a newer capsearch (schema {card['schema']}, this one reads "
            f"up to {SCHEMA}); run `pip install -U capsearch`"
        )
    return card


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write `model.json`, whole or not at all. Write it last: it makes the folder a model."""
    text = json.dumps({"schema": SCHEMA, **card}, indent=2, ensure_ascii=False) + "\n"
    write_text(folder / CARD, text)


def digest(folder: Path, *more: str) -> str:
    """Twelve hex digits over a folder's arrays and tables, and over `more`.

    `more` are the digests of the models it builds on and parameters of its card. `model.json` and
    the log are left out: another description does not make another model.
    """
    total = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.iterdir()):
        if path.name not in (CARD, LOG) and path.is_file():
            total.update(path.name.encode())
            total.update(hashlib.blake2b(path.read_bytes()).digest())
    for one in more:
        total.update(one.encode())
    return total.hexdigest()


def save_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], exact: Collection[str] = ()
) -> None:
    """Write matrices as int8 with one scale per row, vectors and `exact` matrices as float16.

    Row-wise int8 halves a model's size; a test bounds how much it changes a text vector. It ruins
    what whitens features, whose variances differ by a factor of a thousand.
    """
    from safetensors.numpy import save_file

    stored: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        if array.ndim == 2 and name not in exact:
            scale = np.maximum(np.abs(array).max(axis=1), 1e-12) / 127.0
            stored[name] = np.round(array / scale[:, None]).astype(np.int8)
            stored[name + _SCALE] = scale.astype(np.float32)
        else:
            stored[name] = np.ascontiguousarray(array, np.float16)
    save_file(stored, path)


class Arrays:
    """Reads a file of `save_arrays`: whole arrays, or some rows of a large one, as float32."""

    def __init__(self, path: Path) -> None:
        from safetensors.numpy import load_file

        self._stored = load_file(path)
        self._whole: dict[str, NDArray[np.float32]] = {}

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        if name not in self._whole:
            stored = self._stored[name]
            whole = self.rows(name, np.arange(len(stored))) if stored.ndim == 2 else stored
            self._whole[name] = whole.astype(np.float32)
        return self._whole[name]

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def rows(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some rows of a matrix."""
        if name + _SCALE not in self._stored:
            return np.asarray(self._stored[name][rows], np.float32)
        scale = self._stored[name + _SCALE][rows]
        return np.asarray(self._stored[name][rows] * scale[:, None], np.float32)
