"""COCO captions json: the one reader, for data sets and for captions beside indexed images.

{"images": [{"id": 42, "file_name": "000000000042.jpg"}],
 "annotations": [{"image_id": 42, "caption": "A green bench.", "language": "en"}]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
