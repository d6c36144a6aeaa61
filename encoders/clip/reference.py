"""How models of open_clip are named, and the languages that they read.

open_clip:MODEL               the weights of MODEL, if open_clip knows just one set
open_clip:MODEL/PRETRAINED    one of its sets of weights, by open_clip's name
open_clip:hf-hub:ORG/NAME     a repository of the Hugging Face hub
open_clip:PATH                a folder with open_clip_config.json and weights, or a checkpoint
                              file in such a folder; starts with . / or ~
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capsearch.engine.records import LANGUAGES

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
