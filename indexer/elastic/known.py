"""What a run knows of a collection: which file holds which image, and which images are encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.editing import Editor
from capsearch.indexer.elastic.entry import Entry
from capsearch.indexer.embedded.filters import under
from capsearch.indexer.store import KnownFile

_FILES: Mapping[str, Any] = {"source_includes": ["encoded", "searchable", "provenance.files"]}


class KnownFiles:
    """The files of a collection as this run found and left them."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}  # image id by path
        self.stale: set[tuple[str, str]] = set()  # (path, image id): the path holds another image
        self.new_images: set[str] = set()  # that this run has added
        self._any_past: bool | None = None

    def read(self, backend: ElasticBackend, roots: Sequence[Path]) -> dict[str, KnownFile]:
        """The files under `roots`. Of two images at one path, which a killed run may leave, the
        one with the later file counts."""
        wanted = [str(root) for root in roots]
        folders = [*wanted, *(str(root.parent) for root in roots if not root.is_dir())]
        found: dict[str, KnownFile] = {}
        for hits in backend.scan({"terms": {"folders": folders}}, _FILES):
            for file in _files(hits):
                if file.path in wanted or _inside(file.path, wanted):
                    self._keep_latest(found, file)
        self.owners |= {path: file.image_id for path, file in found.items()}
        return found

    def arrive(self, path: str, image_id: str) -> str | None:
        """Notes that a path holds this image, or None; returns the image that it held before."""
        before = self.owners.pop(path, None)
        if image_id:
            self.owners[path] = image_id
            self.stale.discard((path, image_id))
        return before if before != image_id else None

    def past_owners(self, editor: Editor, paths: Sequence[str]) -> dict[str, Entry]:
        """The images that were last at these paths, before earlier runs found them gone."""
        if self._any_past is None:
            self._any_past = bool(editor.backend.count({"exists": {"field": "past_paths"}}))
        if not self._any_past or not paths:
            return {}
        there = {"terms": {"past_paths": list(paths)}}
        pages = editor.backend.scan(there, {"source": False})
        ids = [hit["_id"] for hits in pages for hit in hits]
        latest: dict[str, tuple[str, Entry]] = {}
        for entry in editor.read(ids).values():
            for path, moment in entry.past.items():
                if path not in latest or latest[path][0] < moment:
                    latest[path] = (moment, entry)
        return {path: latest[path][1] for path in paths if path in latest}

    def _keep_latest(self, found: dict[str, KnownFile], file: KnownFile) -> None:
        other = found.get(file.path)
        found[file.path] = file
        if other is not None:
            latest, stale = sorted((file, other), key=lambda one: (-one.mtime_ns, one.image_id))
            found[file.path] = latest
            self.stale.add((stale.path, stale.image_id))


class EncodedIds:
    """store.KnownIds: asks the cluster about each image once. Threads may share it."""

    def __init__(self, editor: Editor) -> None:
        self._editor, self._asked = editor, dict[str, bool]()

    def __contains__(self, image_id: object) -> bool:
        known = self._asked.get(str(image_id))
        if known is None:
            known = bool(self._editor.existing([str(image_id)], encoded=True))
            self._asked[str(image_id)] = known
        return known

    def add(self, image_id: str) -> None:
        """Counts as known from now on."""
        self._asked[image_id] = True


def _files(hits: Iterable[Mapping[str, Any]]) -> Iterable[KnownFile]:
    for hit in hits:
        source = hit["_source"]
        encoded = source.get("encoded", source["searchable"])  # older documents
        for path, mtime_ns, size, sidecars in source["provenance"].get("files", ()):
            yield KnownFile(path, hit["_id"], mtime_ns, size, sidecars, encoded)


def _inside(path: str, roots: Sequence[str]) -> bool:
    return any(first <= path < last for first, last in map(under, roots))
