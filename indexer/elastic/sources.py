"""The roots and captions files of a collection in a cluster, to let go of one.

Documents first, what is remembered last: one that was stopped can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.engine.errors import IndexProblem
from capsearch.engine.records import Caption
from capsearch.indexer.elastic import edits
from capsearch.indexer.elastic.editing import ATTEMPTS, Editor, unchanged_delete
from capsearch.indexer.elastic.entry import Entry
from capsearch.indexer.elastic.matches import Hit
from capsearch.indexer.elastic.requests import Clause
from capsearch.indexer.elastic.state import Kind, State
from capsearch.indexer.embedded import thumbnails
from capsearch.indexer.embedded.filters import under
from capsearch.indexer.forgetting import Forgettable

if TYPE_CHECKING:
    from capsearch.indexer.elastic.collection import ElasticCollection

_FACTS: Mapping[str, Any] = {
    "source_includes": ["provenance.files", "provenance.captions", "provenance.past_files"],
    "seq_no_primary_term": True,
}


class ElasticSources:
    """indexer.forgetting.Sources over a collection."""

    def __init__(self, collection: ElasticCollection, state: State) -> None:
        self._collection, self._state = collection, state

    def roots(self) -> Collection[Path]:
        """The folders indexed so far."""
        return self._state.roots()

    def captions_files(self) -> Collection[Path]:
        """The captions files read so far."""
        return [Path(name) for name in self._state.all("captions file")]

    def root(self, path: Path) -> Forgettable:
        """What would go with a root."""
        images = captions = 0
        for hits in self._collection.backend.scan(_near(path), _FACTS):
            gone = [hit for hit in hits if _paths(hit, "files") and _only_there(hit, path)]
            images += len(gone)
            captions += sum(_count(hit, lambda _, text: not text.generated) for hit in gone)
        return Forgettable(path, images, captions)

    def captions_file(self, path: Path) -> Forgettable:
        """What would go with a captions file."""
        pages = self._collection.backend.scan(_named_in(path), _FACTS)
        found = [hit for hits in pages for hit in hits]
        return Forgettable(path, 0, sum(_captions_from(path, hit) for hit in found))

    def forget_root(self, path: Path) -> None:
        """Documents of this root alone are deleted, others lose their files there."""
        with self._editor() as editor:
            for hits in _until_none(editor, _near(path), lambda hit: _was_there(hit, path)):
                gone = [hit for hit in hits if _only_there(hit, path)]
                ids = {hit["_id"] for hit in gone}
                sent = editor.writer.send(unchanged_delete(hit) for hit in gone)
                deleted = {image_id for image_id, accepted in sent if accepted}
                thumbnails.delete(self._collection.path, deleted)
                editor.edit({hit["_id"]: _leaving(path) for hit in hits if hit["_id"] not in ids})
        kinds: Sequence[Kind] = ("skipped", "mount point", "root")
        for kind in kinds:
            self._state.delete(kind, list(self._state.all(kind, [path])))

    def forget_captions_file(self, path: Path) -> None:
        """Documents lose its captions."""

        def change(entry: Entry | None) -> Entry | None:
            if entry is not None:
                entry.replace_captions(edits.CAPTIONS_FILES, str(path), ())
            return entry

        with self._editor() as editor:
            for hits in _until_none(
                editor, _named_in(path), lambda hit: bool(_captions_from(path, hit))
            ):
                editor.edit({hit["_id"]: change for hit in hits})
        self._state.delete("captions file", [str(path)])

    @contextmanager
    def _editor(self) -> Iterator[Editor]:
        store = self._collection.store()
        with store.writing(rebuild=False):
            yield store.editor
            store.finish()


def _until_none(
    editor: Editor, query: Clause, wanted: Callable[[Hit], bool]
) -> Iterator[list[Hit]]:
    """Documents that are wanted, page by page, until none is left: others may be writing too."""
    for _ in range(ATTEMPTS):
        editor.writer.refresh()
        pages = editor.backend.scan(query, _FACTS)
        chosen = [some for hits in pages if (some := [hit for hit in hits if wanted(hit)])]
        if not chosen:
            return
        yield from chosen
    raise IndexProblem(
        f"{editor.writer.address}: others keep indexing what is to be forgotten; run the same "
        "command again when they are done"
    )


def _near(root: Path) -> Clause:
    """Documents with a file in a root, or that had one; a root may be a file, with others beside
    it."""
    folders = [str(root), *([] if root.is_dir() else [str(root.parent)])]
    past = [{"term": {"past_paths": str(root)}}, {"prefix": {"past_paths": under(root)[0]}}]
    return {"bool": {"should": [{"terms": {"folders": folders}}, *past]}}


def _named_in(path: Path) -> Clause:
    return {"term": {"origins": str(path)}}


def _leaving(root: Path) -> Callable[[Entry | None], Entry | None]:
    def change(entry: Entry | None) -> Entry | None:
        if entry is not None:
            entry.forget_files(lambda path: _inside(path, root))
        return entry

    return change


def _was_there(hit: Hit, root: Path) -> bool:
    paths = [*_paths(hit, "files"), *_paths(hit, "past_files")]
    return any(_inside(path, root) for path in paths)


def _only_there(hit: Hit, root: Path) -> bool:
    return all(_inside(path, root) for path in _paths(hit, "files"))


def _paths(hit: Hit, kind: str) -> list[str]:
    return [one[0] for one in hit["_source"].get("provenance", {}).get(kind, ())]


def _count(hit: Hit, wanted: Callable[[str, Caption], bool]) -> int:
    rows = hit["_source"].get("provenance", {}).get("captions", ())
    return sum(wanted(row[3], Caption(*row[:3])) for row in rows)


def _captions_from(path: Path, hit: Hit) -> int:
    """How many captions of a captions file a document has."""
    files = edits.CAPTIONS_FILES
    return _count(hit, lambda origin, one: origin == str(path) and one.source in files)


def _inside(path: str, root: Path) -> bool:
    first, last = under(root)
    return path == str(root) or first <= path < last
