"""The roots and captions files of a collection in a cluster, to let go of one.

Documents first, what is remembered last: one that was stopped can be run again.

The next version of a collection, beside the one that searches see.

Everything that is known of the images goes over first, with the vectors that need no image: those
projected from stored features where the backbone is the same, and those of captions. The pipeline
does the rest. Stopped or killed, it goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import IndexProblem
from capsearch.engine.records import Caption
from capsearch.indexer import thumbnails
from capsearch.indexer.document import Entry
from capsearch.indexer.elastic import writer
from capsearch.indexer.elastic.collection import Kind, State
from capsearch.indexer.elastic.documents import WHOLE, whole
from capsearch.indexer.elastic.requests import Clause, Hit
from capsearch.indexer.elastic.writer import ATTEMPTS, Change, Editor, unchanged_delete
from capsearch.indexer.forgetting import Forgettable
from capsearch.indexer.sqlite.catalog import under
from capsearch.indexer.sqlite.manifest import Identity

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
                entry.replace_captions(writer.CAPTIONS_FILES, str(path), ())
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
    files = writer.CAPTIONS_FILES
    return _count(hit, lambda origin, one: origin == str(path) and one.source in files)


def _inside(path: str, root: Path) -> bool:
    first, last = under(root)
    return path == str(root) or first <= path < last


_ALL: Mapping[str, Any] = {"match_all": {}}
_WITHOUT_VECTOR: Mapping[str, Any] = {"term": {"encoded": False}}


def carry_over(old: Editor, made: Identity, new: Editor, model: Model) -> None:
    """Copies the documents that the next version lacks; images without a vector are encoded later.

    With another model of the same backbone, no image has to be opened. With the same model
    every image is.
    """
    wanted = Identity.of(model)
    project = made.same_backbone(wanted) and not made.same_vectors(wanted)
    for hits in old.backend.scan(dict(_ALL), WHOLE):
        there = new.existing([hit["_id"] for hit in hits])
        entries = {hit["_id"]: Entry.of(whole(hit)) for hit in hits if hit["_id"] not in there}
        for entry in entries.values():
            _forget_vectors(entry, model if project else None)
        new.edit({one: _unless_there(entry) for one, entry in entries.items()}, new=entries)


def keep_unreachable(old: Editor, new: Editor) -> None:
    """Images whose files are out of reach keep the vectors they have; the model is the same."""
    for hits in new.backend.scan(dict(_WITHOUT_VECTOR), {"source": False}):
        before = old.read([hit["_id"] for hit in hits])
        new.edit({image_id: _with_vectors_of(one) for image_id, one in before.items()})


def _forget_vectors(entry: Entry, model: Model | None) -> None:
    for one in entry.captions:
        one.encoded, one.vector = False, None
    entry.vector = None
    if model is None or entry.feature is None:
        entry.feature = None
    else:
        entry.vector = model.image.project(entry.feature[np.newaxis])[0]


def _unless_there(entry: Entry) -> Change:
    return lambda there: there or entry


def _with_vectors_of(before: Entry) -> Change:
    def change(entry: Entry | None) -> Entry | None:
        if entry is not None and entry.vector is None:
            entry.feature, entry.vector = before.feature, before.vector
        return entry

    return change
