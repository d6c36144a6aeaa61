"""Matching the file names in a captions file with indexed images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from capsearch.indexer.sources.captions import NamedCaption
from capsearch.indexer.sources.unicode_names import composed


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
