"""The checkpoint of a model of open_clip: in a folder, in open_clip's cache, or downloaded there.

HF_HUB_OFFLINE=1 forbids downloads. The sha256 of every checkpoint is computed once and recorded
with its size and time, so that changed weights are another model.
"""

from __future__ import annotations

import hashlib
import json
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from capsearch.encoders import models
from capsearch.encoders.atomic import write_text
from capsearch.encoders.clip.reference import CONFIG, HUB, Reference
from capsearch.engine.errors import UnknownModel

CHECKSUMS = "checksums.json"
# As open_clip prefers them. Others than safetensors are loaded with weights_only=True.
NAMES = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "model.safetensors",
    "pytorch_model.bin",
)
_CHUNK = 1 << 22


def checkpoint(reference: Reference, library: Any) -> Path:
    """The file of the weights, downloaded by open_clip (`library`) if it is not there.

    UnknownModel, with what to fetch and where to put it, if it is not to be had.
    """
    if reference.path is not None:
        return _in_folder(reference, reference.path)
    if reference.model.startswith(HUB):
        return _downloaded(
            reference,
            reference.model.removeprefix(HUB),
            lambda: library.pretrained.download_pretrained_from_hf(
                reference.model.removeprefix(HUB)
            ),
        )
    settings = library.get_pretrained_cfg(reference.model, reference.pretrained)
    repository = str(settings.get("hf_hub", "")).rstrip("/")
    if not repository and offline():
        raise _unreachable(reference, settings.get("url", ""), "HF_HUB_OFFLINE is set")
    return _downloaded(
        reference,
        repository or str(settings.get("url", "")),
        lambda: library.download_pretrained(settings),
    )


def resolved(reference: Reference, library: Any) -> Reference:
    """With the name of the weights, if there is only one; UnknownModel lists those there are."""
    if reference.path is not None or reference.model.startswith(HUB):
        return reference
    known = library.list_models()
    if reference.model not in known:
        close = ", ".join(get_close_matches(reference.model, known, 5, 0.4)) or "none like it"
        raise UnknownModel(f"open_clip has no model called '{reference.model}'; there is: {close}")
    tags = library.list_pretrained_tags_by_model(reference.model)
    pretrained = reference.pretrained or (tags[0] if len(tags) == 1 else "")
    if pretrained not in tags:
        listed = ", ".join(f"{reference.model}/{tag}" for tag in tags) or "none"
        raise UnknownModel(f"which weights? open_clip:{reference.model} has: {listed}")
    return Reference(reference.model, pretrained)


def offline() -> bool:
    """Whether downloads are forbidden, as the Hugging Face hub's own library decides it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def sha256(file: Path) -> str:
    """The checksum of a file, recorded until its size or time changes."""
    record = models.user_models_dir() / CHECKSUMS
    status = file.stat()
    now = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    found = known.get(str(file.resolve()), {})
    if {key: found.get(key) for key in now} == now:
        return str(found["sha256"])
    total = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(_CHUNK):
            total.update(block)
    known[str(file.resolve())] = {**now, "sha256": total.hexdigest()}
    record.parent.mkdir(parents=True, exist_ok=True)
    write_text(record, json.dumps(known, indent=2) + "\n")
    return total.hexdigest()


def _in_folder(reference: Reference, path: Path) -> Path:
    folder = reference.folder
    assert folder is not None
    if not (folder / CONFIG).is_file():
        raise UnknownModel(f"no {CONFIG} in {folder}: {reference} is not a model of open_clip")
    if path.is_file():
        return path
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    raise UnknownModel(f"no weights in {folder}: put {NAMES[0]} there, beside {CONFIG}")


def _downloaded(reference: Reference, origin: str, download: Any) -> Path:
    try:
        return Path(download())
    except Exception as problem:  # open_clip and the hub raise whatever their transports do
        raise _unreachable(reference, origin, " ".join(str(problem).split())[:200]) from problem


def _unreachable(reference: Reference, origin: str, reason: str) -> UnknownModel:
    return UnknownModel(
        f"the weights of {reference} are not in open_clip's cache and cannot be downloaded: fetch "
        f"{NAMES[0]}, {CONFIG} and the tokenizer's files of {origin} on another machine, put them "
        f"into a folder, and use open_clip:./FOLDER; the built-in model needs nothing ({reason})"
    )
