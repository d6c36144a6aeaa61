"""The roots and captions files of a collection in a cluster, to let go of one.

Documents first, what is remembered last: one that was stopped can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.engine.errors import IndexProblem
from capsearch.indexer import thumbnails
from capsearch.indexer.changes import Edits
from capsearch.indexer.elastic.collection import Kind, State
from capsearch.indexer.elastic.documents import captions_from
from capsearch.indexer.elastic.requests import Clause, Hit
from capsearch.indexer.elastic.writer import ATTEMPTS, Editor, unchanged_delete
from capsearch.indexer.roots import Forgettable
from capsearch.indexer.sources.scan import is_in, under

if TYPE_CHECKING:
    from capsearch.indexer.elastic.collection import ElasticCollection


_FACTS: Mapping[str, Any] = {
    "source_includes": ["provenance.files", "provenance.captions", "provenance.past_files"],
    "seq_no_primary_term": True,
}


class ElasticSources:
    """indexer.roots.Sources over a collection."""

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
            captions += sum(not text.generated for hit in gone for text in captions_from(hit))
        return Forgettable(path, images, captions)

    def captions_file(self, path: Path) -> Forgettable:
        """What would go with a captions file."""
        pages = self._collection.backend.scan(_named_in(path), _FACTS)
        captions = [
            text for hits in pages for hit in hits for text in captions_from(hit, str(path))
        ]
        return Forgettable(path, 0, len(captions))

    def forget_root(self, path: Path) -> None:
        """Documents of this root alone are deleted, others lose their files there."""
        with self._editor() as editor:
            for hits in _until_none(editor, _near(path), lambda hit: _was_there(hit, path)):
                gone = [hit for hit in hits if _only_there(hit, path)]
                sent = editor.writer.send(unchanged_delete(hit) for hit in gone)
                deleted = {image_id for image_id, accepted in sent if accepted}
                thumbnails.delete(self._collection.path, deleted)
                edits = Edits()
                for hit in (hit for hit in hits if hit not in gone):
                    edits.forget_files(hit["_id"], path)
                edits.make(editor)
        kinds: Sequence[Kind] = ("skipped", "mount point", "root")
        for kind in kinds:
            self._state.delete(kind, list(self._state.all(kind, [path])))

    def forget_captions_file(self, path: Path) -> None:
        """Documents lose its captions."""
        with self._editor() as editor:
            for hits in _until_none(
                editor, _named_in(path), lambda hit: bool(captions_from(hit, str(path)))
            ):
                edits = Edits()
                for hit in hits:
                    edits.forget_captions(hit["_id"], str(path))
                edits.make(editor)
        self._state.delete("captions file", [str(path)])

    @contextmanager
    def _editor(self) -> Iterator[Editor]:
        store = self._collection.store()
        with store.writing(rebuild=False):
            yield store.documents
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


def _was_there(hit: Hit, root: Path) -> bool:
    paths = [*_paths(hit, "files"), *_paths(hit, "past_files")]
    return any(is_in(path, root) for path in paths)


def _only_there(hit: Hit, root: Path) -> bool:
    return all(is_in(path, root) for path in _paths(hit, "files"))


def _paths(hit: Hit, kind: str) -> list[str]:
    return [one[0] for one in hit["_source"].get("provenance", {}).get(kind, ())]
