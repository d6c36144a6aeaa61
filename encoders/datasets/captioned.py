"""An image with its captions, and what all readers of caption files share."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from capsearch.encoders.languages import detect
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import Caption

# Never trained on: these are translations of test captions.
LEFT_OUT_SOURCES = frozenset({"coco-cn-translated"})


@dataclass(frozen=True, slots=True)
class CaptionedImage:
    """One image and its captions by language; languages without captions are absent."""

    id: str
    split: str
    file: str
    captions: Mapping[str, tuple[Caption, ...]]
    objects: tuple[str, ...] = ()
    tags_zh: tuple[str, ...] = ()
    labelled_set: str = ""  # the published set that labelled it
    concepts: tuple[str, ...] = ()  # ids of the concepts that its label stands for


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder of captions, and what its layout does not specify.

    None means: layout and language are detected from the content, the split comes from the file
    name or from lists beside it, the images lie beside the captions.
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
    """The file itself if its name matches, or a folder's matching files, sorted."""
    if path.is_file():
        return (path,) if path.match(pattern) else ()
    return tuple(sorted(file for file in path.glob(pattern) if file.is_file()))


def open_text(file: Path) -> TextIO:
    """A text file for reading, decompressed if its name ends in .gz."""
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8")
    return file.open(encoding="utf-8")


def read_json(file: Path) -> Any:
    """A json document; DataProblem naming the file if it is not valid json."""
    try:
        return json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise DataProblem(f"{file} is not valid json ({error})") from error


def main_language(texts: Iterable[str]) -> str:
    """The language that most of the first 200 sentences are in."""
    votes = Counter(map(detect, islice(texts, 200)))
    return votes.most_common(1)[0][0] if votes else "en"
