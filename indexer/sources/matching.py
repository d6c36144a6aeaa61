"""Which image a captions file means by a file name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.sources.captions import NamedCaption


def matched(
    catalog: SqliteCatalog, origin: Path, captions: Sequence[NamedCaption]
) -> tuple[list[tuple[str, NamedCaption]], int]:
    """(image id, caption) pairs, and how many captions name no image, or several.

    A name is looked up from the captions file's own folder first; otherwise it means the one
    image whose path ends with it, folder by folder.
    """
    by_name: dict[str, dict[str, str]] = defaultdict(dict)
    for path, image_id in catalog.rows("SELECT path, image_id FROM files ORDER BY path"):
        by_name[PurePath(path).name][path] = image_id
    pairs = []
    for one in captions:
        image_id = _meant(origin.parent, one.file, by_name)
        if image_id is not None:
            pairs.append((image_id, one))
    return pairs, len(captions) - len(pairs)


def _meant(folder: Path, file: str, by_name: Mapping[str, Mapping[str, str]]) -> str | None:
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
