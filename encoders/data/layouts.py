"""The layouts in which caption data sets are published, read into `CaptionedImage` records.

A layout is a row of LAYOUTS: how to recognise it, how to read it, where its image files are. COCO's
captions json also serves captions beside indexed images:

{"images": [{"id": 42, "file_name": "000000000042.jpg"}],
 "annotations": [{"image_id": 42, "caption": "A green bench.", "language": "en"}]}

COCO-CN, Flickr8k-CN and Flickr8k have sentence lines, `IMAGE#KIND#NUMBER sentence`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from capsearch.encoders.data.archives import ImageStore, image_key, is_archive
from capsearch.encoders.data.labels import concepts_of
from capsearch.encoders.text.languages import detect
from capsearch.engine.errors import DataProblem, MissingSplit
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


LANGUAGE_KEYS = ("language", "lang")


class InvalidCoco(ValueError):
    """A document that is not COCO captions json; callers reword it with the file's name."""


@dataclass(frozen=True, slots=True)
class CocoCaption:
    """One annotation."""

    image_id: int | str
    file_name: str  # empty where the document does not name the image's file
    text: str
    language: str | None  # as stated by the document; COCO itself states none
    source: str = ""  # as `capsearch export` states it


def coco_captions(document: object, require_file_names: bool) -> Iterator[CocoCaption]:
    """The captions of a parsed document, in its order; InvalidCoco names the wrong entry.

    `require_file_names`: every annotation must belong to an entry of `images` with a file name.
    Otherwise both may be missing, as in data sets whose file names follow from the ids.
    """
    file_names = _file_names(document, require_file_names)
    annotations = _entries(document, "annotations", ("image_id", "caption"))
    for position, entry in enumerate(annotations):
        image_id = entry["image_id"]
        if require_file_names and image_id not in file_names:
            raise InvalidCoco(
                f"annotations[{position}] is about image {image_id!r}, "
                "which is not among its images"
            )
        language = next((entry[key] for key in LANGUAGE_KEYS if key in entry), None)
        yield CocoCaption(
            image_id,
            file_names.get(image_id, ""),
            str(entry["caption"]),
            language if isinstance(language, str) else None,
            str(entry.get("source", "")),
        )


def _file_names(document: object, required: bool) -> Mapping[int | str, str]:
    if required:
        images = _entries(document, "images", ("id", "file_name"))
    elif isinstance(document, dict) and "images" in document:
        images = _entries(document, "images", ("id",))
    else:
        images = []
    return {image["id"]: str(image.get("file_name", "")) for image in images}


def _entries(document: object, key: str, fields: Sequence[str]) -> list[Mapping[str, Any]]:
    """The list of objects under `key`, each with all `fields`."""
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InvalidCoco(f"a COCO captions json has a list '{key}', this has none")
    for position, entry in enumerate(entries):
        for field in fields:
            if not isinstance(entry, dict) or not isinstance(entry.get(field), str | int):
                raise InvalidCoco(f"{key}[{position}] has no '{field}'")
    return entries


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
    files = files_at(path, "*.jsonl*")
    named = sorted((re.sub(r"\.jsonl(\.gz)?$", "", file.name), file) for file in files)
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
            language: tuple(
                Caption(caption["text"], language, caption["source"]) for caption in sentences
            )
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
    if main_language(str(entry.get("caption")) for entry in annotations[:200]) != "ja":
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
        for caption in coco_captions(read_json(file), require_file_names=False):
            texts[caption.image_id].append(caption.text.strip())
            file_names[caption.image_id] = caption.file_name
    except InvalidCoco as problem:
        raise DataProblem(
            f"{file} is no COCO captions json: it needs `annotations` with image_id and caption "
            f"({problem})"
        ) from problem
    language = source.language or main_language(chain.from_iterable(texts.values()))
    for image_id, of_image in texts.items():
        yield CaptionedImage(
            id=str(image_id),
            split=source.split or _split_in_name(file.name),
            file=file_names[image_id] or f"{int(image_id):012d}.jpg",
            captions={language: tuple(Caption(text, language, kind) for text in of_image if text)},
        )


def _split_in_name(name: str) -> str:
    """train for captions_train2014.json, val for ..._val.json; empty when the name has none."""
    split = re.search(r"train|val|test", name.lower())
    return split.group() if split else ""


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
    **{
        kind: Layout(description, _coco_recogniser(kind), _coco_reader(kind), store_beside)
        for kind, description in (
            ("coco", "COCO captions_*.json, alone or in a folder or its annotations/"),
            ("stair", "STAIR Captions json (COCO's format, Japanese)"),
            ("yj", "YJ Captions json (COCO's format, Japanese)"),
        )
    },
    **{
        name: Layout(description, recogniser(belongs), reader(belongs, source_of), store_beside)
        for name, description, belongs, source_of in (
            (
                "coco-cn",
                "COCO-CN txt: COCO_val2014_000000123456#zhc#0 sentence, with its id lists and tags",
                is_coco_cn,
                coco_cn_source,
            ),
            (
                "flickr8k-cn",
                "Flickr8k-CN txt: NAME.jpg#zhc#0 sentence",
                is_flickr_cn,
                flickr_source,
            ),
            ("flickr8k", "Flickr8k.token.txt: NAME.jpg#0 sentence", is_flickr, flickr_source),
        )
    },
}
