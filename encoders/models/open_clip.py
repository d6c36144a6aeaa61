"""Models of open_clip in torch: weights as open_clip stores them, on a GPU if there is one.

Importing this needs neither torch nor open_clip; opening a model does.

Importing open_clip, also where torchvision's compiled operators do not load.

The checkpoint of a model of open_clip: in a folder, in open_clip's cache, or downloaded there.

HF_HUB_OFFLINE=1 forbids downloads. The sha256 of every checkpoint is computed once and recorded
with its size and time, so that changed weights are another model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.encoders.atomic import write_text
from capsearch.encoders.images.preprocess import RESIZES
from capsearch.encoders.models import clip, registry
from capsearch.encoders.models.clip import CONFIG, HUB, Reference
from capsearch.encoders.models.image import stacked
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.text import own_calibration
from capsearch.engine.errors import MissingExtra, UnknownModel
from capsearch.engine.records import ImageFeatures, Pixels, Vectors

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


PURPOSE, EXTRA = "a model of open_clip", "clip"
# torchvision registers these two at import, whether or not its library loaded.
_OPERATORS = ("nms", "qnms")
_declared: list[Any] = []  # a torch.library.Library takes its operators away when it is collected


def open_clip() -> Any:
    """The module; MissingExtra if it is not installed."""
    try:
        _import_torchvision()
        import open_clip
    except ImportError as problem:
        raise MissingExtra(PURPOSE, EXTRA) from problem
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return open_clip


def _import_torchvision() -> None:
    """Import torchvision beside a torch of another build, e.g. the CPU one.

    Its library of detection operators is then not loaded, which it accepts, but for two
    operators that it registers all the same. open_clip calls neither of them: declaring them is
    enough for the import. A call would still fail, as without the library it must.
    """
    try:
        import torchvision
    except RuntimeError as problem:
        if "torchvision::" not in str(problem):
            raise
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in _OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        _declared.append(library)
        import torchvision  # noqa: F401


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
    record = registry.user_models_dir() / CHECKSUMS
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


SENTENCE = "use3"
BATCH = 32  # images at once


def load(name: str) -> Model:
    """The model called `open_clip:NAME`; its weights are read when first needed."""
    source = OpenClip.find(Reference.parse(name))
    return clip.build(
        str(source.reference),
        source.card(),
        TorchImageTower(source),
        TorchTextTower(source),
        own_calibration(str(source.reference), source.digest),
    )


def load_image_tower(name: str) -> TorchImageTower:
    """The image tower alone, as a backbone for `capsearch train text`."""
    return TorchImageTower(OpenClip.find(Reference.parse(name)))


@dataclass(frozen=True)
class OpenClip:
    """A model of open_clip and the checksum of its weights."""

    reference: Reference
    checkpoint: Path
    sha256: str

    @classmethod
    def find(cls, reference: Reference) -> OpenClip:
        """Finds or downloads the weights; UnknownModel says what to do where it cannot."""
        library = open_clip()
        reference = resolved(reference, library)
        file = checkpoint(reference, library)
        return cls(reference, file, sha256(file))

    @cached_property
    def stored(self) -> Mapping[str, Any]:
        """open_clip's description: model_cfg, and of a local model preprocess_cfg and languages."""
        folder = self.reference.folder
        with _explained(self.reference):
            if folder is None:
                return {"model_cfg": open_clip().get_model_config(self.reference.model)}
            stored = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            return {**stored, "model_cfg": stored["model_cfg"]}

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that it reads: declared by a local model, known by name otherwise."""
        return tuple(self.stored.get("languages") or self.reference.languages)

    @property
    def dimension(self) -> int:
        """D, the width of its space."""
        return int(self.stored["model_cfg"]["embed_dim"])

    @cached_property
    def digest(self) -> str:
        """Of weights, architecture and preprocessing."""
        described = [self.stored.get(key) for key in ("model_cfg", "preprocess_cfg")]
        content = json.dumps([self.sha256, *described], sort_keys=True)
        return blake2b(content.encode(), digest_size=6).hexdigest()

    def card(self) -> dict[str, Any]:
        """What a model's card says of it."""
        return {
            "kind": "clip",
            "name": str(self.reference),
            "languages": list(self.languages),
            "dimension": self.dimension,
            "sentence": SENTENCE,
            "source": {"open_clip": str(self.reference), "sha256": self.sha256},
            "digest": self.digest,
        }

    @cached_property
    def network(self) -> Any:
        """The network with its weights, on the GPU if there is one; nothing is unpickled."""
        library = open_clip()
        with _explained(self.reference):
            if self.reference.folder is None:
                network = library.create_model(
                    self.reference.model,
                    self.reference.pretrained or None,
                    weights_only=True,
                    require_pretrained=True,
                    force_custom_text=True,  # all text towers in one form
                )
            else:
                network = new_network(library, self.reference.folder)
                library.load_checkpoint(network, str(self.checkpoint), weights_only=True)
        return network.eval().requires_grad_(False).to(device())

    @cached_property
    def tokenizer(self) -> Any:
        """open_clip's tokenizer: texts to (N, T) token ids."""
        folder = self.reference.folder
        with _explained(self.reference):
            name = f"local-dir:{folder}" if folder else self.reference.model
            return open_clip().get_tokenizer(name)

    @cached_property
    def preprocessing(self) -> Mapping[str, Any]:
        """size, mean, std, interpolation and resize_mode."""
        settings = dict(self.network.visual.preprocess_cfg)
        size = settings["size"]
        sides = (size, size) if isinstance(size, int) else tuple(size)
        if sides[0] != sides[1] or settings["resize_mode"] not in RESIZES:
            raise UnknownModel(
                f"{self.reference} takes images of {sides[0]} x {sides[1]}, resized by "
                f"'{settings['resize_mode']}'; square ones can be used, {', '.join(RESIZES)}"
            )
        return {**settings, "size": sides[0]}

    def images(self, pixels: Tensor) -> Tensor:
        """(N, S, S, 3) uint8 -> (N, D) unit vectors."""
        scaled = scale_pixels(pixels, self.preprocessing["mean"], self.preprocessing["std"])
        return self.network.encode_image(scaled, normalize=True)  # type: ignore[no-any-return]

    def texts(self, tokens: Tensor) -> Tensor:
        """(N, T) token ids -> (N, D) unit vectors."""
        return self.network.encode_text(tokens, normalize=True)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TorchImageTower:
    """The image tower in torch (encoders.models.image.ImageNetwork)."""

    source: OpenClip

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.source.reference)

    @property
    def digest(self) -> str:
        """Of weights and architecture."""
        return self.source.digest

    @property
    def dimension(self) -> int:
        """D: its features are vectors of the shared space."""
        return self.source.dimension

    def preprocess(self, image: Image) -> Pixels:
        """Cropped, squashed or padded, as the model was trained."""
        settings = self.source.preprocessing
        resize = RESIZES[settings["resize_mode"]]
        return resize(image, settings["size"], settings["interpolation"])

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, D) unit vectors of preprocessed images."""
        import torch

        parts = [np.zeros((0, self.dimension), np.float32)]
        for start in range(0, len(pixels), BATCH):
            batch = stacked(pixels[start : start + BATCH], self.source.preprocessing["size"])
            with inference():
                found = self.source.images(torch.from_numpy(batch).to(device()))
            parts.append(found.float().cpu().numpy())
        return np.concatenate(parts)

    def feature_maps(self, pixels: Sequence[Pixels]) -> ImageFeatures:
        """The vectors alone: no head describes images from this tower's feature map."""
        return ImageFeatures(self.features(pixels))


@dataclass(frozen=True)
class TorchTextTower:
    """The text tower in torch (encoders.models.clip.TextTower)."""

    source: OpenClip

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(N, D) unit vectors of texts in any language."""
        parts = [np.zeros((0, self.source.dimension), np.float32)]
        for start in range(0, len(texts), clip.BATCH):
            tokens = self.source.tokenizer(list(texts[start : start + clip.BATCH]))
            with inference():
                found = self.source.texts(tokens.to(device()))
            parts.append(found.float().cpu().numpy())
        return np.concatenate(parts)


def scale_pixels(pixels: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """(N, S, S, 3) uint8 -> (N, 3, S, S) standardised as the network was trained."""
    import torch

    channels = pixels.permute(0, 3, 1, 2).to(torch.float32) / 255.0
    centre = torch.tensor(mean, device=pixels.device).view(1, 3, 1, 1)
    return (channels - centre) / torch.tensor(deviation, device=pixels.device).view(1, 3, 1, 1)


def device() -> str:
    """cuda, mps or cpu: the first that this machine has."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


@contextmanager
def inference() -> Iterator[None]:
    """No gradients; on CUDA in 16 bits, which is several times faster there and not on a CPU."""
    import torch

    cuda = device() == "cuda"
    half = torch.bfloat16 if cuda and torch.cuda.is_bf16_supported() else torch.float16
    with torch.inference_mode(), torch.autocast("cuda", half, enabled=cuda):
        yield


def new_network(library: Any, folder: Path) -> Any:
    """The network of a folder, without weights; with the transformers config there, if any."""
    changes: dict[str, Any] = {}
    text = dict(library.get_model_config(f"local-dir:{folder}")["text_cfg"])
    if "hf_model_name" in text and (folder / "config.json").is_file():
        named = {"hf_model_name": str(folder), "hf_model_pretrained": False}
        changes["text_cfg"] = {**text, **named}
    return library.create_model(
        f"local-dir:{folder}",
        load_weights=False,
        pretrained_text=False,
        force_custom_text=True,  # all text towers in one form
        **changes,
    )


@contextmanager
def _explained(reference: Reference) -> Iterator[None]:
    """What open_clip and its libraries raise, as one line; their warnings are left out."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # "no pretrained weights": they are loaded afterwards
    try:
        yield
    except ImportError as problem:
        raise MissingExtra(f"{reference} ({problem})", "clip") from problem
    except Exception as problem:  # of torch, transformers, safetensors, the hub
        reason = " ".join(str(problem).split())[:300]
        raise UnknownModel(f"open_clip cannot open {reference}: {reason}") from problem
    finally:
        logging.disable(before)
