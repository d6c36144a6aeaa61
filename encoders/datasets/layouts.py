"""The layouts in which caption data sets are published, read into `CaptionedImage` records.

A layout is a row of LAYOUTS: how to recognise it, how to read it, where its image files are.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsearch.encoders.datasets import sentence_lines as lines
from capsearch.encoders.datasets.captioned import (
    CaptionedImage,
    Source,
    files_at,
    folder_of,
    main_language,
    open_text,
    read_json,
)
from capsearch.encoders.datasets.coco import InvalidCoco, coco_captions
from capsearch.encoders.datasets.image_store import ImageStore, is_archive
from capsearch.encoders.datasets.labelled import concepts_of
from capsearch.engine.errors import DataProblem, MissingSplit
from capsearch.engine.records import Caption

Splits = Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """How one kind of data set is recognised, read and matched with its images."""

    description: str
    recognises: Callable[[Path], bool]
    read: Callable[[Source, Splits], Iterable[CaptionedImage]]
    store: Callable[[Source, Splits], ImageStore]


def layout_of(source: Source) -> Layout:
    """The layout a source names, or the one recognised from its content, else DataProblem."""
    name = source.layout or recognise(source.path)
    if name not in LAYOUTS:
        raise DataProblem(f"no layout {name!r}; choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def recognise(path: Path) -> str:
    """The name of the layout a file or folder is in; DataProblem listing them all otherwise."""
    if not path.exists():
        raise DataProblem(f"no data set at {path}: there is no such file or folder")
    for name, layout in LAYOUTS.items():
        if layout.recognises(path):
            return name
    known = "\n".join(f"  {name:12} {layout.description}" for name, layout in LAYOUTS.items())
    raise DataProblem(f"{path} is in no known layout; the known ones are:\n{known}")


# --- jsonl: SPLIT.jsonl.gz with SPLIT-NN.tar or .tar.gz ---------------------------------


def _jsonl_files(path: Path, splits: Splits) -> tuple[tuple[str, Path], ...]:
    """(split, file) pairs; the split is the file's name without .jsonl.gz."""
    found = files_at(path, "*.jsonl*")
    named = sorted((re.sub(r"\.jsonl(\.gz)?$", "", file.name), file) for file in found)
    return tuple(pair for pair in named if splits is None or pair[0] in splits)


def _is_jsonl(path: Path) -> bool:
    for _, file in _jsonl_files(path, None)[:1]:
        with open_text(file) as text:
            return bool(re.search(r'"(captions|label)"', text.readline()))
    return False


def _read_jsonl(source: Source, splits: Splits) -> Iterator[CaptionedImage]:
    files = _jsonl_files(source.path, splits)
    if not files:
        known = ", ".join(split for split, _ in _jsonl_files(source.path, None))
        raise MissingSplit(f"no split {', '.join(splits or ())} in {source.path}; there is {known}")
    for split, file in files:
        with open_text(file) as text:
            for number, line in enumerate(text, start=1):
                if line.strip():
                    yield _jsonl_image(line, source.split or split, f"{file}, line {number}")


def _jsonl_image(line: str, split: str, where: str) -> CaptionedImage:
    try:
        record = json.loads(line)
        captions = {
            language: tuple(Caption(one["text"], language, one["source"]) for one in sentences)
            for language, sentences in _captions_in(record).items()
            if sentences
        }
        labelled_set = str(record.get("set", split))
        return CaptionedImage(
            id=str(record["id"]),
            split=split,
            file=record["file"],
            captions=captions,
            objects=tuple(record.get("objects", ())),
            tags_zh=tuple(record.get("tags_zh", ())),
            labelled_set=labelled_set if "label" in record else "",
            concepts=concepts_of(labelled_set, record["label"]) if "label" in record else (),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataProblem(
            f"{where}: expected an object with id, file and captions "
            f"{{language: [{{text, source}}]}} or label ({type(error).__name__}: {error})"
        ) from error


def _captions_in(record: dict[str, Any]) -> dict[str, Any]:
    """The captions of a record; only one with a label may have none."""
    captions: dict[str, Any] = (
        record.get("captions", {}) if "label" in record else record["captions"]
    )
    return captions


def _jsonl_store(source: Source, splits: Splits) -> ImageStore:
    if source.images is not None:
        return store_beside(source, splits)
    folder = folder_of(source.path)
    names = "|".join(re.escape(split) for split, _ in _jsonl_files(source.path, splits))
    shard = re.compile(rf"(?:{names})-\d+\.(?:tar|tar\.gz|tgz)")
    archives = tuple(path for path in sorted(folder.iterdir()) if shard.fullmatch(path.name))
    return ImageStore(archives=archives) if archives else ImageStore(folders=(folder,))


# --- COCO json, and the Japanese sets that follow it -------------------------------------


def _coco_files(path: Path) -> tuple[Path, ...]:
    """A captions json, or all in a folder or its annotations/; `instances_*` has no captions."""
    if path.is_file():
        return (path,) if path.suffix == ".json" else ()
    folders = (path, path / "annotations")
    return tuple(file for folder in folders for file in files_at(folder, "*caption*.json"))


def _coco_kind(path: Path) -> str | None:
    """`stair`, `yj` or `coco` for a COCO captions json, None for anything else."""
    document = read_json(path)
    annotations = document.get("annotations") if isinstance(document, dict) else None
    if not isinstance(annotations, list) or not annotations or "caption" not in annotations[0]:
        return None
    if main_language(str(one.get("caption")) for one in annotations[:200]) != "ja":
        return "coco"
    stair = "stair" in path.name or "tokenized_caption" in annotations[0]
    return "stair" if stair else "yj"


def _coco_recogniser(kind: str) -> Callable[[Path], bool]:
    return lambda path: any(_coco_kind(file) == kind for file in _coco_files(path))


def _coco_reader(kind: str) -> Callable[[Source, Splits], Iterator[CaptionedImage]]:
    def reader(source: Source, splits: Splits) -> Iterator[CaptionedImage]:
        for file in _coco_files(source.path):
            # A folder may hold several languages' files; one given by name is always read.
            if source.path.is_file() or _coco_kind(file) == kind:
                yield from _coco_images(file, source, kind)

    return reader


def _coco_images(file: Path, source: Source, kind: str) -> Iterator[CaptionedImage]:
    texts: dict[int | str, list[str]] = defaultdict(list)
    file_names: dict[int | str, str] = {}
    try:
        for one in coco_captions(read_json(file), require_file_names=False):
            texts[one.image_id].append(one.text.strip())
            file_names[one.image_id] = one.file_name
    except InvalidCoco as problem:
        raise DataProblem(
            f"{file} is no COCO captions json: it needs `annotations` with image_id and caption "
            f"({problem})"
        ) from problem
    language = source.language or main_language(text for found in texts.values() for text in found)
    for image_id, found in texts.items():
        yield CaptionedImage(
            id=str(image_id),
            split=source.split or _split_in_name(file.name),
            file=file_names[image_id] or f"{int(image_id):012d}.jpg",
            captions={language: tuple(Caption(text, language, kind) for text in found if text)},
        )


def _split_in_name(name: str) -> str:
    """train for captions_train2014.json, val for ..._val.json; empty when the name has none."""
    found = re.search(r"(train|val|test)", name.lower())
    return found.group(1) if found else ""


# --- image files, and the table ----------------------------------------------------


def store_beside(source: Source, splits: Splits) -> ImageStore:
    """The folder or archive that `source.images` names, or else what is beside the captions."""
    path = source.images or folder_of(source.path)
    if not path.exists():
        raise DataProblem(f"no images at {path}: there is no such file or folder")
    if path.is_file():
        return ImageStore(archives=(path,))
    return ImageStore((path,), tuple(file for file in sorted(path.iterdir()) if is_archive(file)))


LAYOUTS: Mapping[str, Layout] = {
    "jsonl": Layout(
        "SPLIT.jsonl.gz, one record per image (captions or label), beside SPLIT-NN.tar or .tar.gz",
        _is_jsonl,
        _read_jsonl,
        _jsonl_store,
    ),
    "coco": Layout(
        "COCO captions_*.json, alone or in a folder or its annotations/",
        _coco_recogniser("coco"),
        _coco_reader("coco"),
        store_beside,
    ),
    "stair": Layout(
        "STAIR Captions json (COCO's format, Japanese)",
        _coco_recogniser("stair"),
        _coco_reader("stair"),
        store_beside,
    ),
    "yj": Layout(
        "YJ Captions json (COCO's format, Japanese)",
        _coco_recogniser("yj"),
        _coco_reader("yj"),
        store_beside,
    ),
    "coco-cn": Layout(
        "COCO-CN txt: COCO_val2014_000000123456#zhc#0 sentence, with its id lists and tags",
        lines.recogniser(lines.is_coco_cn),
        lines.reader(lines.is_coco_cn, lines.coco_cn_source),
        store_beside,
    ),
    "flickr8k-cn": Layout(
        "Flickr8k-CN txt: NAME.jpg#zhc#0 sentence",
        lines.recogniser(lines.is_flickr_cn),
        lines.reader(lines.is_flickr_cn, lines.flickr_source),
        store_beside,
    ),
    "flickr8k": Layout(
        "Flickr8k.token.txt: NAME.jpg#0 sentence",
        lines.recogniser(lines.is_flickr),
        lines.reader(lines.is_flickr, lines.flickr_source),
        store_beside,
    ),
}
