"""File names in composed (NFC) and decomposed (NFD) Unicode.

macOS decomposes the names it copies to other disks: が is two code points there, one elsewhere.
Names are compared composed; paths are stored and opened as the disk spells them.
"""

from __future__ import annotations

from itertools import product
from pathlib import PurePath
from unicodedata import normalize

_MAX_SPELLINGS = 64


def composed(name: str) -> str:
    """The name in NFC, for comparing."""
    return normalize("NFC", name)


def spellings(path: str) -> tuple[str, ...]:
    """The path as given, and with each of its components composed or decomposed.

    A folder from macOS below one that was made here has both. With more than six components that
    differ, only the wholly composed and the wholly decomposed path are added.
    """
    choices = [
        tuple(dict.fromkeys((part, composed(part), normalize("NFD", part))))
        for part in PurePath(path).parts
    ]
    if 2 ** sum(len(choice) > 1 for choice in choices) > _MAX_SPELLINGS:
        return tuple(dict.fromkeys((path, composed(path), normalize("NFD", path))))
    return tuple(str(PurePath(*parts)) for parts in product(*choices))
