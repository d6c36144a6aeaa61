"""Captions in files beside images: sidecar files, COCO JSON and CSV tables.

Matching the file names in a captions file with indexed images.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path, PurePath

from capsearch.encoders.data.layouts import LANGUAGE_KEYS, InvalidCoco, coco_captions
from capsearch.engine.errors import InvalidCaptions
from capsearch.engine.records import GENERATED, Caption
from capsearch.indexer.sources.charsets import read_text
from capsearch.indexer.sources.metadata import read_xmp_sidecar, written_caption
from capsearch.indexer.sources.scan import composed

MAX_SIDECAR_BYTES = 1_000_000
_TEXT_KEYS = ("caption", "captions", "description", "text")
_FILE_COLUMNS = ("file", "filename", "file_name", "path", "image")
_CAPTION_COLUMNS = ("caption", "text", "description", "sentence")


@dataclass(frozen=True, slots=True)
class NamedCaption:
    """A caption from a captions file, with the name of the image file it describes."""

    file: str
    caption: Caption


def read_sidecar(path: Path) -> tuple[Caption, ...]:
    """The captions of NAME.txt (one per line), NAME.json (a string, list or object) or NAME.xmp.

    InvalidCaptions for a file that cannot be read. JSON without a caption key yields none.
    """
    if path.suffix.lower() == ".xmp":
        return tuple(replace(one, source="sidecar") for one in read_xmp_sidecar(path).captions)
    text = _read(path, MAX_SIDECAR_BYTES)
    if path.suffix.lower() == ".json":
        texts = _json_captions(_parse(text, path), None)
    else:
        texts = ((line, None) for line in text.splitlines())
    captions = (written_caption(line, "sidecar", language) for line, language in texts)
    try:
        return tuple(dict.fromkeys(caption for caption in captions if caption is not None))
    except RecursionError as problem:
        raise InvalidCaptions(f"{path}: not captions: nested too deeply") from problem


def read_captions(path: Path) -> tuple[NamedCaption, ...]:
    """All captions of a COCO JSON file or a CSV table, in file order.

    Captions that a model wrote, as `capsearch export` marks them, are left out.
    InvalidCaptions names the file and the line or entry that is wrong.
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
    except ValueError as problem:  # an integer of thousands of digits
        raise InvalidCaptions(f"{path}: not json: {problem}") from problem
    except RecursionError as problem:
        raise InvalidCaptions(f"{path}: not captions: nested too deeply") from problem


def _json_captions(value: object, language: str | None) -> Iterator[tuple[str, str | None]]:
    """(text, its language if given) of every caption in the JSON of a sidecar."""
    if isinstance(value, str):
        yield value, language
    elif isinstance(value, list):
        for entry in value:
            yield from _json_captions(entry, language)
    elif isinstance(value, dict):
        stated = next((value[key] for key in LANGUAGE_KEYS if key in value), language)
        for key in _TEXT_KEYS:
            if key in value:
                yield from _json_captions(value[key], stated if isinstance(stated, str) else None)


def _coco(path: Path) -> Iterator[NamedCaption]:
    document = _parse(_read(path), path)
    try:
        for entry in coco_captions(document, require_file_names=True):
            caption = written_caption(entry.text, "coco", entry.language)
            if caption is not None and not entry.source.startswith(GENERATED):
                yield NamedCaption(entry.file_name, caption)
    except InvalidCoco as problem:
        raise InvalidCaptions(f"{path}: {problem}") from problem


def _table(path: Path) -> Iterator[NamedCaption]:
    content = _read(path)
    header = content.split("\n", 1)[0]
    delimiter = max("\t;,", key=header.count)
    rows = csv.DictReader(StringIO(content, newline=""), delimiter=delimiter)
    columns = {(name or "").strip().lower(): name for name in rows.fieldnames or ()}
    file_column = _column(columns, _FILE_COLUMNS, path)
    text_column = _column(columns, _CAPTION_COLUMNS, path)
    language_column = next((columns[key] for key in LANGUAGE_KEYS if key in columns), None)
    source_column = columns.get("source")
    try:
        for row in rows:
            if not row[file_column]:
                raise InvalidCaptions(f"{path}, line {rows.line_num}: no file name")
            if row[text_column] is None:
                raise InvalidCaptions(
                    f"{path}, line {rows.line_num}: fewer columns than the header"
                )
            caption = written_caption(
                row[text_column], "csv", row[language_column] if language_column else None
            )
            generated = bool(source_column) and (row[source_column] or "").startswith(GENERATED)
            if caption is not None and not generated:
                yield NamedCaption(row[file_column].strip(), caption)
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


def matched(
    image_paths: Iterable[tuple[str, str]], origin: Path, captions: Sequence[NamedCaption]
) -> tuple[list[tuple[str, NamedCaption]], int]:
    """(image id, caption) pairs, and the number of captions that match no image or several.

    `image_paths` has (path, image id) of every indexed file, `origin` is the captions file. A
    name is first resolved from the folder of `origin`. Otherwise it matches the files whose last
    path components equal it; if these are different images, the caption stays unmatched.
    Composed and decomposed Unicode are equal, unless both spellings are names of files.
    """
    by_name: dict[str, dict[str, str]] = defaultdict(dict)
    for path, image_id in image_paths:
        by_name[composed(PurePath(path).name)][path] = image_id
    pairs = []
    for caption in captions:
        match = _match(origin.parent, caption.file, by_name)
        if match is not None:
            pairs.append((match, caption))
    return pairs, len(captions) - len(pairs)


def _match(folder: Path, file: str, by_name: Mapping[str, Mapping[str, str]]) -> str | None:
    name = PurePath(file.replace("\\", "/"))
    candidates = by_name.get(composed(name.name), {})
    beside = (folder / name).resolve().parts
    parts = tuple(part for part in name.parts if part != ".")
    attempts = ((ending, spelling) for ending in (beside, parts) for spelling in (str, composed))
    for ending, spelling in attempts:
        ids = _ending_with(ending, candidates, spelling)
        if ids:
            return ids.pop() if len(ids) == 1 else None
    return None


def _ending_with(
    parts: Sequence[str], candidates: Mapping[str, str], spelling: Callable[[str], str]
) -> set[str]:
    """The ids of the images whose last path components are `parts`, compared in `spelling`."""
    wanted = [spelling(part) for part in parts]
    return {
        image_id
        for path, image_id in candidates.items()
        if [spelling(part) for part in PurePath(path).parts[-len(parts) :]] == wanted
    }
