"""A photograph with its captions, and what all readers of caption files share."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from capsearch.encoders.languages import language_by_script
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import Caption


@dataclass(frozen=True, slots=True)
class CaptionedImage:
    """One photograph and all that people said about it; languages without captions are absent."""

    id: str
    split: str
    file: str
    captions: Mapping[str, tuple[Caption, ...]]
    objects: tuple[str, ...] = ()
    tags_zh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder of captions, and what its layout leaves open.

    None means: layout and language by content, split by file name or lists beside it,
    images beside the captions.
    """

    path: Path
    layout: str | None = None
    split: str | None = None
    language: str | None = None
    images: Path | None = None


def folder_of(path: Path) -> Path:
    """The folder itself, or the one a file lies in."""
    return path if path.is_dir() else path.parent


def files_at(path: Path, pattern: str) -> tuple[Path, ...]:
    """The file itself if its name fits, or a folder's files that fit, sorted."""
    if path.is_file():
        return (path,) if path.match(pattern) else ()
    return tuple(sorted(file for file in path.glob(pattern) if file.is_file()))


def open_text(file: Path) -> TextIO:
    """A text file for reading, gunzipped if its name says so."""
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8")
    return file.open(encoding="utf-8")


def read_json(file: Path) -> Any:
    """A json document; DataProblem naming the file if it is none."""
    try:
        return json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise DataProblem(f"{file} is not valid json ({error})") from error


def main_language(texts: Iterable[str]) -> str:
    """The language most of these sentences are in, by their script."""
    votes = Counter(map(language_by_script, islice(texts, 200)))
    return votes.most_common(1)[0][0] if votes else "en"
