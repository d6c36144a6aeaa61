"""Sentence lines, `IMAGE#KIND#NUMBER sentence`: COCO-CN, Flickr8k-CN and Flickr8k."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from capsearch.encoders.datasets.captioned import (
    CaptionedImage,
    Source,
    files_at,
    folder_of,
    main_language,
    open_text,
)
from capsearch.encoders.datasets.image_store import image_key
from capsearch.engine.records import Caption

# COCO_val2014_000000123456#zhc#0 sentence | 1000268201_693b08cb0e.jpg#0<TAB>sentence
SENTENCE_LINE = re.compile(r"(?P<file>[^#\s]+)#(?:(?P<kind>[A-Za-z]+)#)?\d+\s+(?P<text>\S.*)")
SPLIT_LISTS = {"train": "train", "val": "val", "dev": "val", "test": "test"}
FLICKR_FILE = re.compile(r"(\d+)_[0-9a-f]+")
# Flickr8k-CN's sentences were written by people, translated by people, or machine-translated.
FLICKR_SOURCES = {
    "zhc": "flickr8k-cn",
    "zhm": "flickr8k-cn-translated",
    "zhb": "model:baidu-translate",
    "zhg": "model:google-translate",
}


def _txt_files(path: Path) -> tuple[Path, ...]:
    """Sentence files without their word-segmented copies: we segment with our own tokenizer."""
    return tuple(file for file in files_at(path, "*.txt") if "seg" not in file.name.lower())


def _sentences(file: Path) -> Iterator[tuple[str, str, str]]:
    """(file, kind, text) of every sentence line; kind is "" where the line has none."""
    with open_text(file) as lines:
        for line in lines:
            match = SENTENCE_LINE.fullmatch(line.strip())
            if match:
                yield match["file"], match["kind"] or "", match["text"].strip()


def recogniser(belongs: Callable[[str, str], bool]) -> Callable[[Path], bool]:
    """A test for files whose first sentence line satisfies `belongs(file name, kind)`."""

    def recognises(path: Path) -> bool:
        heads = (islice(_sentences(file), 1) for file in _txt_files(path))
        return any(belongs(name, kind) for head in heads for name, kind, _ in head)

    return recognises


def is_coco_cn(name: str, kind: str) -> bool:
    """COCO-CN uses COCO's long file names."""
    return name.startswith("COCO_")


def is_flickr_cn(name: str, kind: str) -> bool:
    """Flickr8k-CN marks its lines zhc, zhb, zhm, ..."""
    return not is_coco_cn(name, kind) and kind.startswith("zh")


def is_flickr(name: str, kind: str) -> bool:
    """Flickr8k's own lines have no kind."""
    return not is_coco_cn(name, kind) and not kind.startswith("zh")


def reader(
    belongs: Callable[[str, str], bool], source_of: Callable[[Path, str], str]
) -> Callable[[Source, Sequence[str] | None], Iterator[CaptionedImage]]:
    """A reader of the lines that `belong`; `source_of(sentence file, kind)` names their source."""

    def read(source: Source, splits: Sequence[str] | None) -> Iterator[CaptionedImage]:
        listed, tags = _split_lists(folder_of(source.path)), _tags(folder_of(source.path))
        for file in _txt_files(source.path):
            sentences = tuple(_sentences(file))
            language = source.language or main_language(text for _, _, text in sentences)
            for name, kind, text in sentences:
                if belongs(name, kind):
                    yield CaptionedImage(
                        id=_image_id(name),
                        split=source.split or listed.get(image_key(name), ""),
                        file=name if "." in name else f"{name}.jpg",
                        captions={language: (Caption(text, language, source_of(file, kind)),)},
                        tags_zh=tags.get(image_key(name), ()),
                    )

    return read


def coco_cn_source(file: Path, kind: str) -> str:
    """Written by people, translated by people, or part of the extended set."""
    if "translated" in file.name:
        return "coco-cn-translated"
    return "coco-cn-ext" if "ext" in file.name.split(".")[0] else "coco-cn"


def flickr_source(file: Path, kind: str) -> str:
    """The entry of FLICKR_SOURCES; lines without a kind belong to Flickr8k itself."""
    return FLICKR_SOURCES.get(kind[:3].lower(), "flickr8k")


def _image_id(name: str) -> str:
    """COCO's number, or flickr-NUMBER: equal in every layout, so that sources can be merged."""
    key = image_key(name)
    flickr = FLICKR_FILE.fullmatch(key)
    return f"flickr-{flickr.group(1)}" if flickr else key


def _split_lists(folder: Path) -> Mapping[str, str]:
    """Splits by image key, from coco-cn_train.txt, Flickr_8k.devImages.txt and the like."""
    splits: dict[str, str] = {}
    for file in files_at(folder, "*.txt"):
        named = re.search(r"[._-](train|val|dev|test)(?:Images)?\.txt$", file.name)
        if named and not any(_sentences(file)):
            keys = (image_key(line) for line in file.read_text("utf-8").split())
            splits.update(dict.fromkeys(keys, SPLIT_LISTS[named.group(1)]))
    return splits


def _tags(folder: Path) -> Mapping[str, tuple[str, ...]]:
    """Human Chinese tags by image key, from lines of an id and its tags."""
    tags: dict[str, tuple[str, ...]] = {}
    for file in files_at(folder, "*tag*.txt"):
        with open_text(file) as lines:
            for line in lines:
                name, *labels = re.split(r"[\s,，]+", line.strip())
                if labels:
                    tags[image_key(name.split("#")[0])] = tuple(filter(None, labels))
    return tags
