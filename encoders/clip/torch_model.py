"""Models of open_clip in torch: weights as open_clip stores them, on a GPU if there is one.

Importing this needs neither torch nor open_clip; opening a model does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.encoders.calibration.stored import own_calibration
from capsearch.encoders.clip import towers, weights
from capsearch.encoders.clip.library import open_clip
from capsearch.encoders.clip.reference import CONFIG, Reference
from capsearch.encoders.image import stacked
from capsearch.encoders.models import Model
from capsearch.encoders.preprocess import RESIZES
from capsearch.engine.errors import MissingExtra, UnknownModel
from capsearch.engine.records import ImageFeatures, Pixels, Vectors

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

SENTENCE = "use3"
BATCH = 32  # images at once


def load(name: str) -> Model:
    """The model called `open_clip:NAME`; its weights are read when first needed."""
    source = OpenClip.find(Reference.parse(name))
    return towers.build(
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
        reference = weights.resolved(reference, library)
        file = weights.checkpoint(reference, library)
        return cls(reference, file, weights.sha256(file))

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
    """The image tower in torch (encoders.image.ImageNetwork)."""

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
    """The text tower in torch (encoders.clip.towers.TextTower)."""

    source: OpenClip

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(N, D) unit vectors of texts in any language."""
        parts = [np.zeros((0, self.source.dimension), np.float32)]
        for start in range(0, len(texts), towers.BATCH):
            tokens = self.source.tokenizer(list(texts[start : start + towers.BATCH]))
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
