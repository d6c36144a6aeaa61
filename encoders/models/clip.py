"""CLIP-like models that search: an image tower and a text tower into one space.

The towers run on ONNX Runtime (`Backbone`, `OnnxTextTower`), or in torch (`torch_model`).

Texts to token ids as open_clip's tokenizers do it, without torch: tokenizer.json.

How models of open_clip are named, and the languages that they read.

open_clip:MODEL               the weights of MODEL, if open_clip knows just one set
open_clip:MODEL/PRETRAINED    one of its sets of weights, by open_clip's name
open_clip:hf-hub:ORG/NAME     a repository of the Hugging Face hub
open_clip:PATH                a folder with open_clip_config.json and weights, or a checkpoint
                              file in such a folder; starts with . / or ~
"""

from __future__ import annotations

import html
import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import write_text
from capsearch.encoders.models import registry
from capsearch.encoders.models.calibration import StoredEvidence
from capsearch.encoders.models.hubness import NO_PENALTY, Hubness, HubnessPenalty
from capsearch.encoders.models.image import ImageNetwork, ProjectedImageEncoder, open_session
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.text import (
    DEFAULT_CLM_WEIGHT,
    CalibratedTextEncoder,
    Calibration,
    Sentence,
    caption_vectors,
)
from capsearch.encoders.text.languages import simplify
from capsearch.engine.errors import MissingExtra
from capsearch.engine.records import LANGUAGES, Vectors

FILE = "tokenizer.json"  # truncation and padding are part of it
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _spaces(text: str) -> str:
    import ftfy

    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


def _lower(text: str) -> str:
    return _spaces(text).lower()


def _canonical(text: str) -> str:
    bare = _spaces(text).replace("_", " ").translate(_WITHOUT_PUNCTUATION)
    return " ".join(bare.lower().split())


# By open_clip's names.
CLEANERS: Mapping[str, Callable[[str], str]] = {
    "whitespace": _spaces,
    "lower": _lower,
    "canonicalize": _canonical,
}


@dataclass(frozen=True)
class Tokens:
    """The tokenizer of a text tower."""

    folder: Path
    clean: str  # a key of CLEANERS
    zeroed: tuple[int, ...] = ()  # ids that become 0
    trim: bool = False  # leave out padding that all texts of a batch have

    def ids(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """(N, T) token ids of N > 0 texts, padded to the context length, or trimmed."""
        clean = CLEANERS[self.clean]
        encoded = self._tokenizer.encode_batch([clean(text) for text in texts])
        ids = np.array([one.ids for one in encoded], np.int64)
        ids[np.isin(ids, self.zeroed)] = 0
        if self.trim:
            ids = ids[:, : max(sum(one.attention_mask) for one in encoded)]
        return ids

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            import ftfy  # noqa: F401
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("a model exported from open_clip", "exported") from None
        return Tokenizer.from_file(str(self.folder / FILE))


BATCH = 64  # texts
SETTINGS = "vectors.json"  # in a calibration's folder: what was fitted beside the evidence
# Without calibration: both spaces of a caption alike, no hubness penalties.
DEFAULT_SENTENCE_WEIGHT = 0.5
DEFAULT_CL_FLOOR = 0.3


class TextTower(Protocol):
    """Texts to vectors."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(N, D) unit vectors of N texts in any language."""
        ...


@dataclass(frozen=True)
class OnnxTextTower:
    """An exported text tower: `tokens` (N, T) int64 -> `vectors` (N, D) of unit length."""

    path: Path
    dimension: int
    tokens: Tokens

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(N, D) unit vectors."""
        parts = [np.zeros((0, self.dimension), np.float32)]
        for start in range(0, len(texts), BATCH):
            ids = self.tokens.ids(texts[start : start + BATCH])
            parts.append(self._session.run(None, {"tokens": ids})[0])
        return np.concatenate(parts, dtype=np.float32)

    @cached_property
    def _session(self) -> Any:
        return open_session(self.path)


@dataclass(frozen=True)
class ClipTextEncoder(CalibratedTextEncoder):
    """A text tower as text encoder for the languages that it was trained on."""

    tower: TextTower
    reads: tuple[str, ...]

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages it encodes."""
        return self.reads

    def read(self, text: str, language: str) -> Sentence:
        """The text, in Simplified Chinese; all of its words are known, by their parts."""
        return Sentence(simplify(text) if language == "zh" else text)

    def visual_vectors(
        self, sentences: Sequence[Sentence], language: str, vectors: Vectors
    ) -> tuple[Vectors, tuple[bool, ...]]:
        """A text is known if it has a letter or a digit."""
        texts = [sentence.text for sentence in sentences]
        known = tuple(any(character.isalnum() for character in text) for text in texts)
        return self.tower.encode(texts), known


@dataclass(frozen=True, slots=True)
class Settings:
    """What turns a tower's vectors into those of an index, and how CL and CM are fused."""

    sentence_weight: float = DEFAULT_SENTENCE_WEIGHT
    clm_weights: Mapping[str, float] = field(default_factory=dict)  # by language
    cl_floors: Mapping[str, float] = field(default_factory=dict)
    hubness: Mapping[str, HubnessPenalty] = field(default_factory=dict)  # "image", "caption"

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Those of a calibration's folder, or the defaults."""
        if not (folder / SETTINGS).is_file():
            return cls()
        stored = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        hubness = {side: HubnessPenalty(**one) for side, one in stored["hubness"].items()}
        return cls(stored["sentence_weight"], stored["clm_weights"], stored["cl_floors"], hubness)

    @property
    def digest_text(self) -> str:
        """What changes vectors, as text; empty for the defaults."""
        changing = {"sentence_weight": self.sentence_weight, "hubness": asdict(self)["hubness"]}
        return json.dumps(changing, sort_keys=True) if self != Settings() else ""


def save_settings(folder: Path, fitted: Calibration) -> None:
    """Write what calibration fitted beside its query bank."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / SETTINGS, json.dumps(asdict(fitted), indent=2) + "\n")


def build(
    name: str, card: Mapping[str, Any], image: ImageNetwork, text: TextTower, calibration: Path
) -> Model:
    """A model of two towers; `card` has digest, dimension, languages and sentence encoder."""
    sentences, digest = registry.load_sentence(str(card["sentence"])), str(card["digest"])
    nothing = Hubness(NO_PENALTY, calibration, lambda bank: bank.visual)
    languages = tuple(card["languages"])
    encoder = ClipTextEncoder(
        name, digest, image.dimension, sentences, {}, {}, DEFAULT_SENTENCE_WEIGHT, nothing,
        StoredEvidence(calibration), text, languages,
    )  # fmt: skip
    images = ProjectedImageEncoder(image, image.dimension, None, nothing)
    return calibrated(Model(name, digest, images, encoder, card), calibration)


def calibrated(model: Model, folder: Path) -> Model:
    """The model with the hubness penalties, weights and evidence that were fitted into a folder."""
    text, image = model.text, model.image
    assert isinstance(text, ClipTextEncoder) and isinstance(image, ProjectedImageEncoder)
    settings = Settings.read(folder)
    base, weight = str(model.card["digest"]), settings.sentence_weight
    more = settings.digest_text
    digest = blake2b(f"{base} {more}".encode(), digest_size=6).hexdigest() if more else base
    clm = dict.fromkeys(text.reads, DEFAULT_CLM_WEIGHT) | dict(settings.clm_weights)
    floors = dict.fromkeys(text.reads, DEFAULT_CL_FLOOR) | dict(settings.cl_floors)
    of_images = settings.hubness.get("image", NO_PENALTY)
    of_captions = Hubness(
        settings.hubness.get("caption", NO_PENALTY),
        folder,
        lambda bank: caption_vectors(bank.visual, bank.sentence, weight),
    )
    return replace(
        model,
        digest=digest,
        image=replace(image, hubness=Hubness(of_images, folder, lambda bank: bank.visual)),
        text=replace(
            text,
            digest=digest,
            clm_weights=clm,
            cl_floors=floors,
            sentence_weight=weight,
            hubness=of_captions,
            evidence=StoredEvidence(folder),
        ),
    )


SCHEME = "open_clip"
HUB = "hf-hub:"
CONFIG = "open_clip_config.json"

# By names of models; the first that matches. Others were trained on English.
KNOWN_LANGUAGES: Mapping[str, tuple[str, ...]] = {
    r"xlm-roberta|mt5|nllb|siglip2|siglip-i18n|worldwide|multilingual": LANGUAGES,
    r"chinese": ("zh",),
    r"japanese": ("ja",),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """One model of open_clip: by its name and that of its weights, or by a path."""

    model: str = ""
    pretrained: str = ""
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """What follows `open_clip:`."""
        if text.startswith((".", "~", "/")) or Path(text).is_absolute():
            return cls(path=Path(text).expanduser().absolute())
        if text.startswith(HUB):
            return cls(text)
        model, _, pretrained = text.partition("/")
        return cls(model, pretrained)

    def __str__(self) -> str:
        name = "/".join(filter(None, (self.model, self.pretrained)))
        return f"{SCHEME}:{self.path or name}"

    @property
    def folder(self) -> Path | None:
        """The folder of a local model."""
        if self.path is None or self.path.is_dir():
            return self.path
        return self.path.parent

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that a model of this name reads."""
        for pattern, languages in KNOWN_LANGUAGES.items():
            if re.search(pattern, self.model.lower()):
                return languages
        return ("en",)
