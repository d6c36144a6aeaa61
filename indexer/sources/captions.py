"""Captions people wrote beside their images: sidecar files, COCO json and CSV tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from capsearch.engine.errors import InvalidCaptions
from capsearch.engine.records import Caption
from capsearch.indexer.sources.charsets import read_text
from capsearch.indexer.sources.metadata import written_caption

MAX_SIDECAR_BYTES = 1_000_000
_TEXT_KEYS = ("caption", "captions", "description", "text")
_LANGUAGE_KEYS = ("language", "lang")
_FILE_COLUMNS = ("file", "filename", "file_name", "path", "image")
_CAPTION_COLUMNS = ("caption", "text", "description", "sentence")


@dataclass(frozen=True, slots=True)
class NamedCaption:
    """A caption from a captions file, and the image file it names."""

    file: str
    caption: Caption


def read_sidecar(path: Path) -> tuple[Caption, ...]:
    """The captions of NAME.txt (one a line) or NAME.json (text, list or object).

    InvalidCaptions for a file that cannot be read; a json of some other kind holds none.
    """
    text = _read(path, MAX_SIDECAR_BYTES)
    if path.suffix.lower() == ".json":
        found = _sentences(_parse(text, path), None)
    else:
        found = ((line, None) for line in text.splitlines())
    captions = (written_caption(line, "sidecar", language) for line, language in found)
    return tuple(dict.fromkeys(one for one in captions if one is not None))


def read_captions(path: Path) -> tuple[NamedCaption, ...]:
    """All captions of a COCO json or a CSV table, in file order.

    InvalidCaptions names the file and the line or entry that cannot be read.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(sorted(_READERS))
        raise InvalidCaptions(f"{path}: captions come as one of {known}, not '{path.suffix}'")
    return tuple(dict.fromkeys(reader(path)))


def _read(path: Path, limit: int | None = None) -> str:
    try:
        if limit is not None and path.stat().st_size > limit:
            raise InvalidCaptions(f"{path}: more than {limit / 1e6:g} MB is not a caption")
        return read_text(path.read_bytes())
    except OSError as problem:
        raise InvalidCaptions(f"{path}: cannot be read: {problem.strerror or problem}") from problem


def _parse(text: str, path: Path) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise InvalidCaptions(
            f"{path}, line {problem.lineno}: not json: {problem.msg}"
        ) from problem
    except RecursionError as problem:
        raise InvalidCaptions(f"{path}: not captions: nested too deeply") from problem


def _sentences(value: object, language: str | None) -> Iterator[tuple[str, str | None]]:
    """(text, stated language) of every caption in a sidecar's json, whichever form it has."""
    if isinstance(value, str):
        yield value, language
    elif isinstance(value, list):
        for one in value:
            yield from _sentences(one, language)
    elif isinstance(value, dict):
        stated = next((value[key] for key in _LANGUAGE_KEYS if key in value), language)
        for key in _TEXT_KEYS:
            if key in value:
                yield from _sentences(value[key], stated if isinstance(stated, str) else None)


def _coco(path: Path) -> Iterator[NamedCaption]:
    document = _parse(_read(path), path)
    names = {
        image["id"]: image["file_name"]
        for image in _entries(document, "images", ("id", "file_name"), path)
    }
    wanted = ("image_id", "caption")
    for at, entry in enumerate(_entries(document, "annotations", wanted, path)):
        if entry["image_id"] not in names:
            raise InvalidCaptions(
                f"{path}: annotations[{at}] is about image {entry['image_id']!r}, "
                "which is not among its images"
            )
        language = next((entry[key] for key in _LANGUAGE_KEYS if key in entry), None)
        caption = written_caption(str(entry["caption"]), "coco", language)
        if caption is not None:
            yield NamedCaption(str(names[entry["image_id"]]), caption)


def _entries(
    document: object, key: str, fields: Sequence[str], path: Path
) -> list[Mapping[str, str]]:
    """The list of objects under `key`, each with all `fields`, or an error that says which not."""
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InvalidCaptions(f"{path}: a COCO captions json has a list '{key}', this has none")
    for at, entry in enumerate(entries):
        for field in fields:
            if not isinstance(entry, dict) or not isinstance(entry.get(field), str | int):
                raise InvalidCaptions(f"{path}: {key}[{at}] has no '{field}'")
    return entries


def _table(path: Path) -> Iterator[NamedCaption]:
    text = _read(path)
    header = text.split("\n", 1)[0]
    delimiter = max("\t;,", key=header.count)
    rows = csv.DictReader(StringIO(text, newline=""), delimiter=delimiter)
    columns = {(name or "").strip().lower(): name for name in rows.fieldnames or ()}
    file = _column(columns, _FILE_COLUMNS, path)
    sentence = _column(columns, _CAPTION_COLUMNS, path)
    language = next((columns[key] for key in _LANGUAGE_KEYS if key in columns), None)
    try:
        for row in rows:
            if not row[file]:
                raise InvalidCaptions(f"{path}, line {rows.line_num}: no file name")
            if row[sentence] is None:
                raise InvalidCaptions(
                    f"{path}, line {rows.line_num}: fewer columns than the header"
                )
            caption = written_caption(row[sentence], "csv", row[language] if language else None)
            if caption is not None:
                yield NamedCaption(row[file].strip(), caption)
    except csv.Error as problem:
        raise InvalidCaptions(f"{path}, line {rows.line_num}: {problem}") from problem


def _column(columns: Mapping[str, str], names: Sequence[str], path: Path) -> str:
    for name in names:
        if name in columns:
            return columns[name]
    raise InvalidCaptions(
        f"{path}, line 1: no column named {' or '.join(names)}; "
        f"the header has {', '.join(columns) or 'nothing'}"
    )


_READERS: Mapping[str, Callable[[Path], Iterator[NamedCaption]]] = {
    ".json": _coco,
    ".csv": _table,
    ".tsv": _table,
}
