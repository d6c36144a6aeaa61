"""Texts to token ids as open_clip's tokenizers do it, without torch: tokenizer.json."""

from __future__ import annotations

import html
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.errors import MissingExtra

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
