"""Matching the file names in a captions file with indexed images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from capsearch.indexer.sources.captions import NamedCaption


def matched(
    image_paths: Iterable[tuple[str, str]], origin: Path, captions: Sequence[NamedCaption]
) -> tuple[list[tuple[str, NamedCaption]], int]:
    """(image id, caption) pairs, and the number of captions that match no image or several.

    `image_paths` has (path, image id) of every indexed file, `origin` is the captions file. A
    name is first resolved from the folder of `origin`. Otherwise it matches the files whose last
    path components equal it; if these are different images, the caption stays unmatched.
    """
    by_name: dict[str, dict[str, str]] = defaultdict(dict)
    for path, image_id in image_paths:
        by_name[PurePath(path).name][path] = image_id
    pairs = []
    for caption in captions:
        match = _match(origin.parent, caption.file, by_name)
        if match is not None:
            pairs.append((match, caption))
    return pairs, len(captions) - len(pairs)


def _match(folder: Path, file: str, by_name: Mapping[str, Mapping[str, str]]) -> str | None:
    name = PurePath(file.replace("\\", "/"))
    candidates = by_name.get(name.name, {})
    beside = candidates.get(str((folder / name).resolve()))
    if beside is not None:
        return beside
    parts = tuple(part for part in name.parts if part != ".")
    ids = {
        image_id
        for path, image_id in candidates.items()
        if PurePath(path).parts[-len(parts) :] == parts
    }
    return ids.pop() if len(ids) == 1 else None
