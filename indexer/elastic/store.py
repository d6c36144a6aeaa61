"""A run of the pipeline on a collection in a cluster: batches of whole documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.encoders.models.registry import Model
from capsearch.indexer import thumbnails
from capsearch.indexer.document import Entry
from capsearch.indexer.elastic import collection, sources, writer
from capsearch.indexer.elastic.client import Address
from capsearch.indexer.elastic.collection import State
from capsearch.indexer.elastic.descriptions import ElasticDescriptions
from capsearch.indexer.elastic.documents import identity_of
from capsearch.indexer.elastic.requests import HAS_FILE, OUTDATED
from capsearch.indexer.elastic.writer import (
    DOCUMENTS,
    Editor,
    ElasticWriter,
    EncodedIds,
    KnownFiles,
    chunks,
    unchanged_delete,
)
from capsearch.indexer.prepare import Outcome, Prepared
from capsearch.indexer.sources.captions import NamedCaption
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.manifest import Identity
from capsearch.indexer.store import EditedSidecars, EncodedImage, FileState, KnownFile

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch


# Images are found while a run goes on, but not at the price of a refresh every second. An odd
# number, so that it is known from what somebody has set.
REFRESH_INTERVAL = "31s"
_KEEP_MISSING = "keep_missing_days"


class ElasticStore:
    """indexer.store.Store over a collection; several may write to it at once."""

    def __init__(
        self,
        client: Elasticsearch,
        address: Address,
        model: Model,
        path: Path,
        thumbnails_in: Path,
        shards: int,
        replicas: int,
    ) -> None:
        self._client, self._address, self.model, self.path = client, address, model, path
        self._thumbnails, self._sizes = thumbnails_in, {"shards": shards, "replicas": replicas}
        self._state = State(client, address)
        published = collection.current(client, address)
        self._editor = None if published is None else self._editor_of(published)
        self._old: Editor | None = None  # of a rebuild
        self._files = KnownFiles()
        self._skipped: Mapping[str, tuple[ImageFile, str]] = {}

    # What is known

    def require_same_model(self) -> None:
        """ModelMismatch unless the collection was made with the model."""
        if self._editor is not None:
            identity = Identity.of(self.model)
            index = self._editor.writer.index
            collection.require_same_model(self._client, self._address, index, identity)

    def excludes(self) -> Mapping[Path, tuple[str, ...]]:
        """The roots, with the globs that each leaves out."""
        return self._state.roots()

    def mount_points(self) -> set[Path]:
        """Mount points below the roots."""
        return {Path(name) for name in self._state.all("mount point")}

    def captions_files(self) -> Mapping[Path, FileState]:
        """The captions files read so far."""
        found = self._state.all("captions file").items()
        return {Path(name): FileState(**facts) for name, facts in found}

    def files(self, roots: Sequence[Path]) -> Mapping[str, KnownFile]:
        """The indexed files under `roots`; in a new collection none."""
        if self._editor is None:
            return {}
        self._editor.writer.refresh()
        return self._files.read(self._editor.backend, roots)

    def skipped(self, roots: Sequence[Path]) -> Mapping[str, tuple[ImageFile, str]]:
        """The files that were skipped before."""
        self._skipped = {
            name: (ImageFile(name, facts["mtime_ns"], facts["size"]), facts["reason"])
            for name, facts in self._state.all("skipped", roots).items()
        }
        return self._skipped

    def encoded_ids(self) -> EncodedIds:
        """Asks the cluster, image by image."""
        return EncodedIds(self.editor)

    def encoded_ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that have a vector this moment."""
        return self.editor.existing(ids, encoded=True)

    def image_paths(self) -> Sequence[tuple[str, str]]:
        """(path, image id) of every file."""
        self.editor.writer.refresh()
        pages = self.editor.backend.scan(HAS_FILE, {"source_includes": ["paths"]})
        return [(path, hit["_id"]) for hits in pages for hit in hits
                for path in hit["_source"]["paths"]]  # fmt: skip

    def missing(self) -> int:
        """How many images have no file."""
        self.editor.writer.refresh()
        return self.editor.backend.count({"exists": {"field": "missing_since"}})

    # A run

    @contextmanager
    def writing(self, rebuild: bool) -> Iterator[None]:
        """Into the current version, or with `rebuild` into the next one."""
        self._state.create()
        old = self._editor if rebuild else None
        identity = Identity.of(self.model)
        index = collection.prepare(
            self._client, self._address, identity, rebuild=old is not None, **self._sizes
        )
        self._editor = self._editor_of(index)
        if collection.current(self._client, self._address) is None:
            collection.publish(self._client, self._address, index)  # found while it is being filled
        with self._editor.writer.bulk_load(REFRESH_INTERVAL):
            if old is not None:
                self._begin_rebuild(old)
            yield

    def remember(
        self, excludes: Mapping[Path, Sequence[str]], mount_points: Sequence[Path]
    ) -> None:
        """Adds roots and mount points."""
        self._state.add_roots(excludes)
        self._state.put("mount point", {str(path): {} for path in mount_points})

    def put(self, new: Sequence[EncodedImage], batch: Sequence[Outcome]) -> int:
        """New documents are created whole, with their captions' vectors; others are changed."""
        added = writer.put_batch(self.editor, self._files, new, batch)
        refused = [one for one in batch if not isinstance(one, Prepared) and one.permanent]
        self._state.put(
            "skipped",
            {
                one.file.path: {
                    "mtime_ns": one.file.mtime_ns, "size": one.file.size, "reason": one.reason,
                }
                for one in refused
            },
        )  # fmt: skip
        fine = [one.file.path for one in batch if isinstance(one, Prepared)]
        self._state.delete("skipped", [path for path in fine if path in self._skipped])
        return added

    def put_sidecars(self, edited: Sequence[EditedSidecars]) -> int:
        """A document may have several files with sidecars."""
        return writer.made(self.editor, writer.sidecars(edited))

    def put_captions_file(
        self, file: Path, state: FileState, pairs: Sequence[tuple[str, NamedCaption]]
    ) -> int:
        """The captions first; a file is noted when they are there."""
        wanted: dict[str, list[NamedCaption]] = defaultdict(list)
        for image_id, named in pairs:
            wanted[image_id].append(named)
        origin = str(file)
        for hits in self._scan({"term": {"origins": origin}}, HAS_FILE):
            wanted.update({hit["_id"]: [] for hit in hits if hit["_id"] not in wanted})
        changed = {one: writer.named(origin, some) for one, some in wanted.items()}
        added = writer.made(self.editor, changed)
        facts = {"mtime_ns": state.mtime_ns, "size": state.size}
        self._state.put("captions file", {origin: facts})
        return added

    def remove_files(self, files: Sequence[str], skipped: Sequence[str]) -> None:
        """Images that have none left are not found any more."""
        paths = {(path, self._files.owners[path]) for path in files}
        self.editor.edit(writer.gone(sorted(paths | self._files.stale)))
        self._files.stale.clear()
        self._state.delete("skipped", skipped)

    def pending_captions(self) -> int:
        """Documents with captions that are not encoded."""
        self.editor.writer.refresh()
        return self.editor.backend.count(self._pending())

    def encode_captions(self) -> Iterator[int]:
        """Writing a document encodes its captions."""
        done = 0
        for hits in self._scan(self._pending()):
            for some in chunks(hits, DOCUMENTS):
                self.editor.edit({hit["_id"]: _as_it_is for hit in some})
                done += len(some)
                yield done

    def index_words(self) -> Iterator[None]:
        """They are written with the documents; those of an older schema are written again."""
        self.editor.writer.refresh()
        for hits in self._scan(OUTDATED):
            for some in chunks(hits, DOCUMENTS):
                self.editor.edit({hit["_id"]: _as_it_is for hit in some})
                yield

    def descriptions(self) -> ElasticDescriptions:
        """What models write about the images."""
        return ElasticDescriptions(self.editor)

    def complete(self) -> None:
        """Publishes a rebuild."""
        if self._old is None:
            return
        made = identity_of(
            collection.about_index(self._client, self._address, self._old.writer.index)
        )
        if made.same_vectors(Identity.of(self.model)):
            self.editor.writer.refresh()
            sources.keep_unreachable(self._old, self.editor)
        collection.publish(self._client, self._address, self.editor.writer.index)
        self._old = None

    def keep_days(self, given: float | None) -> float | None:
        """As given now, which is remembered, or before."""
        if given is None:
            stored = self._state.all("option").get(_KEEP_MISSING)
            return float(stored["days"]) if stored else None
        self._state.put("option", {_KEEP_MISSING: {"days": given}})
        return given

    def prune(self, days: float) -> int:
        """Deletes documents, unless somebody has found a file of them in the meantime."""
        latest = (datetime.now(timezone.utc) - timedelta(days=days)).isoformat()
        self.editor.writer.refresh()
        pruned: set[str] = set()
        for hits in self._scan({"range": {"missing_since": {"lte": latest}}}):
            sent = self.editor.writer.send(unchanged_delete(hit) for hit in hits)
            pruned |= {image_id for image_id, accepted in sent if accepted}
        if pruned:
            thumbnails.delete(self._thumbnails, pruned)
        return len(pruned)

    def finish(self) -> None:
        """Makes everything visible."""
        self.editor.writer.refresh()

    @property
    def editor(self) -> Editor:
        """Changes the documents of the version that is written to."""
        assert self._editor is not None  # inside `writing` there is an index
        return self._editor

    def _editor_of(self, index: str) -> Editor:
        text = self.model.text
        return Editor(ElasticWriter(self._client, self._address, index, text.words), text)

    def _begin_rebuild(self, old: Editor) -> None:
        self._old = old
        made = identity_of(collection.about_index(self._client, self._address, old.writer.index))
        sources.carry_over(old, made, self.editor, self.model)
        self._state.delete("skipped", list(self._state.all("skipped")))

    def _pending(self) -> dict[str, Any]:
        return {"terms": {"pending": list(self.model.text.languages)}}

    def _scan(self, *clauses: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
        query = {"bool": {"filter": list(clauses)}}
        light = {"source": False, "seq_no_primary_term": True}
        return self.editor.backend.scan(query, light)


def _as_it_is(entry: Entry | None) -> Entry | None:
    return entry
