"""A run of the pipeline on a collection in a cluster: batches of whole documents.

A rebuild goes into the next version of the collection, beside the one that searches see. Everything
that is known of the images goes over first, with the vectors that need no image: those projected
from stored features where the backbone is the same, all of them where only the schema is older. The
pipeline does the rest. Stopped or killed, it goes on where it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.encoders.models.registry import Model
from capsearch.engine.protocols import Head
from capsearch.engine.records import Caption, ImageRecord, Vectors
from capsearch.indexer import thumbnails
from capsearch.indexer.changes import Change, Edits, chunks
from capsearch.indexer.document import StoredDocument, days_ago
from capsearch.indexer.elastic import collection
from capsearch.indexer.elastic.client import Address
from capsearch.indexer.elastic.collection import State
from capsearch.indexer.elastic.documents import (
    FEATURE_ROW,
    SCHEMA,
    WHOLE,
    captions_from,
    identity_of,
    row,
    whole,
)
from capsearch.indexer.elastic.requests import HAS_FILE, SEARCHABLE, Clause, Hit
from capsearch.indexer.elastic.writer import (
    DOCUMENTS,
    Editor,
    ElasticWriter,
    EncodedIds,
    unchanged_delete,
)
from capsearch.indexer.identity import Identity
from capsearch.indexer.prepare import Outcome, Prepared, Refused
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.store import Descriptions, EncodedImage, FileState, KnownFile, Store

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch


# Images are found while a run goes on, but not at the price of a refresh every second. An odd
# number, so that it is known from what somebody has set.
REFRESH_INTERVAL = "31s"
_KEEP_MISSING = "keep_missing_days"
_LIGHT: Mapping[str, Any] = {"source": False, "seq_no_primary_term": True}
_CAPTIONS: Mapping[str, Any] = {"source_includes": ["provenance.captions"]}
_FEATURES: Mapping[str, Any] = {"source": False, "docvalue_fields": [FEATURE_ROW]}
_DESCRIBED: Clause = {
    "bool": {"should": [{"exists": {"field": head}} for head in ("tagger", "captioner")]}
}


class ElasticStore(Store):
    """A Store over a collection; several may write to it at once."""

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
        super().__init__(model, path)
        self._client, self._address = client, address
        self._thumbnails, self._sizes = thumbnails_in, {"shards": shards, "replicas": replicas}
        self._state = State(client, address)
        published = collection.current(client, address)
        self._editor = None if published is None else self._editor_of(published)
        self._old: Editor | None = None  # of a rebuild
        self._skipped: Mapping[str, tuple[ImageFile, str]] = {}

    @property
    def documents(self) -> Editor:
        """Those of the version that is written to."""
        assert self._editor is not None  # inside `writing` there is an index
        return self._editor

    # What is known

    def require_same_model(self) -> None:
        """ModelMismatch unless the collection was made with the model, SchemaTooOld."""
        if self._editor is not None:
            about, this = self._about(self._editor), Identity.of(self.model)
            collection.require_same_model(about, self._address, this)

    def excludes(self) -> Mapping[Path, tuple[str, ...]]:
        """The roots, with the globs that each leaves out."""
        return self._state.roots()

    def mount_points(self) -> set[Path]:
        """Mount points below the roots."""
        return {Path(name) for name in self._state.all("mount point")}

    def captions_files(self) -> Mapping[Path, FileState]:
        """The captions files read so far."""
        known = self._state.all("captions file").items()
        return {Path(name): FileState(**facts) for name, facts in known}

    def files(self, roots: Sequence[Path]) -> Mapping[str, KnownFile]:
        """The indexed files under `roots`; in a new collection none."""
        if self._editor is None:
            return {}
        self._editor.writer.refresh()
        return self._editor.files(roots)

    def skipped(self, roots: Sequence[Path]) -> Mapping[str, tuple[ImageFile, str]]:
        """The files that were skipped before."""
        self._skipped = {
            name: (ImageFile(name, facts["mtime_ns"], facts["size"]), facts["reason"])
            for name, facts in self._state.all("skipped", roots).items()
        }
        return self._skipped

    def encoded_ids(self) -> EncodedIds:
        """Asks the cluster, image by image."""
        return EncodedIds(self.documents)

    def encoded_ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that have a vector this moment."""
        return self.documents.existing(ids, encoded=True)

    def image_paths(self) -> Sequence[tuple[str, str]]:
        """(path, image id) of every file."""
        pages = self._scan([HAS_FILE], {"source_includes": ["paths"]})
        return [(path, hit["_id"]) for hits in pages for hit in hits
                for path in hit["_source"]["paths"]]  # fmt: skip

    def missing(self) -> int:
        """How many images have no file."""
        return self._count({"exists": {"field": "missing_since"}})

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
        if self._editor is None or self._editor.writer.index != index:
            self._editor = self._editor_of(index)
        if collection.current(self._client, self._address) is None:
            collection.publish(self._client, self._address, index)  # found while it is being filled
        with self._editor.writer.bulk_load(REFRESH_INTERVAL):
            if old is not None:
                self._old = old
                self._carry_over(old)
                self._state.delete("skipped", list(self._state.all("skipped")))
            yield

    def remember(
        self, excludes: Mapping[Path, Sequence[str]], mount_points: Sequence[Path]
    ) -> None:
        """Adds roots and mount points."""
        self._state.add_roots(excludes)
        self._state.put("mount point", {str(path): {} for path in mount_points})

    def put(self, new: Sequence[EncodedImage], batch: Sequence[Outcome]) -> int:
        """New documents are created whole, with their captions' vectors; others are changed."""
        added = super().put(new, batch)
        for outcome in batch:
            if isinstance(outcome, Prepared):
                self.documents.note_holder(outcome.file.path, outcome.image_id)
            elif outcome.permanent:
                self.documents.note_holder(outcome.file.path, None)
        return added

    def put_skipped(self, refused: Sequence[Refused], read: Sequence[str]) -> None:
        """A small document for each."""
        facts = {
            one.file.path: {
                "mtime_ns": one.file.mtime_ns, "size": one.file.size, "reason": one.reason,
            }
            for one in refused
        }  # fmt: skip
        self._state.put("skipped", facts)
        self._state.delete("skipped", [path for path in read if path in self._skipped])

    def forget_skipped(self, paths: Sequence[str]) -> None:
        """Deletes their small documents."""
        self._state.delete("skipped", paths)

    def captions_of_file(self, origin: str) -> Mapping[str, set[Caption]]:
        """As the documents have them."""
        captions: dict[str, set[Caption]] = defaultdict(set)
        for hits in self._scan([{"term": {"origins": origin}}, HAS_FILE], _CAPTIONS):
            for hit in hits:
                captions[hit["_id"]] = set(captions_from(hit, origin))
        return captions

    def note_captions_file(self, file: Path, state: FileState) -> None:
        """In a small document."""
        facts = {"mtime_ns": state.mtime_ns, "size": state.size}
        self._state.put("captions file", {str(file): facts})

    def remove_files(self, files: Sequence[str], skipped: Sequence[str]) -> None:
        """Documents of files that hold another image leave them, too."""
        edits = Edits()
        for path, image_id in sorted(self.documents.stale):
            edits.leave(image_id, path)
        edits.make(self.documents)
        self.documents.stale.clear()
        super().remove_files(files, skipped)

    def pending_captions(self) -> int:
        """Documents with captions that are not encoded."""
        return self._count(self._pending())

    def encode_captions(self) -> Iterator[int]:
        """Writing a document encodes its captions."""
        done = 0
        for hits in self._scan([self._pending()]):
            for some in chunks(hits, DOCUMENTS):
                self.documents.edit({hit["_id"]: lambda document: document for hit in some})
                done += len(some)
                yield done

    def index_words(self) -> Iterator[None]:
        """Nothing is left to do: words are written with the documents."""
        yield from ()

    def descriptions(self) -> ElasticDescriptions:
        """What models write about the images."""
        return ElasticDescriptions(self.documents)

    def complete(self) -> None:
        """Publishes a rebuild."""
        if self._old is None:
            return
        if identity_of(self._about(self._old)).same_vectors(Identity.of(self.model)):
            self._keep_unreachable(self._old)
        collection.publish(self._client, self._address, self.documents.writer.index)
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
        pruned: set[str] = set()
        for hits in self._scan([{"range": {"missing_since": {"lte": days_ago(days)}}}]):
            sent = self.documents.writer.send(unchanged_delete(hit) for hit in hits)
            pruned |= {image_id for image_id, accepted in sent if accepted}
        if pruned:
            thumbnails.delete(self._thumbnails, pruned)
        return len(pruned)

    def finish(self) -> None:
        """Makes everything visible."""
        self.documents.writer.refresh()

    # A rebuild

    def _carry_over(self, old: Editor) -> None:
        """Copies the documents that the next version lacks, without the vectors that have to be
        made anew."""
        about = self._about(old)
        made, wanted = identity_of(about), Identity.of(self.model)
        same = made.same_vectors(wanted)
        project = self.model.image.project if made.same_backbone(wanted) and not same else None
        for hits in old.backend.scan({"match_all": {}}, WHOLE):
            there = self.documents.existing([hit["_id"] for hit in hits])
            copies = {hit["_id"]: whole(hit) for hit in hits if hit["_id"] not in there}
            if not same or about["schema"] == SCHEMA:
                for document in copies.values():
                    _replace_vectors(document, project)
            changes = {image_id: _unless_there(copy) for image_id, copy in copies.items()}
            self.documents.edit(changes, new=copies)

    def _keep_unreachable(self, old: Editor) -> None:
        """Images whose files are out of reach keep the vectors they have; the model is the same."""
        for hits in self._scan([{"term": {"encoded": False}}]):
            before = old.read([hit["_id"] for hit in hits])
            self.documents.edit({one: _with_vectors_of(copy) for one, copy in before.items()})

    def _about(self, editor: Editor) -> Mapping[str, Any]:
        return collection.about_index(self._client, self._address, editor.writer.index)

    def _editor_of(self, index: str) -> Editor:
        text = self.model.text
        return Editor(ElasticWriter(self._client, self._address, index, text.words), text)

    def _pending(self) -> Clause:
        return {"terms": {"pending": list(self.model.text.languages)}}

    def _count(self, clause: Clause) -> int:
        self.documents.writer.refresh()
        return self.documents.backend.count(clause)

    def _scan(
        self, required: Sequence[Clause], source: Mapping[str, Any] = _LIGHT
    ) -> Iterator[list[Hit]]:
        self.documents.writer.refresh()
        return self.documents.backend.scan({"bool": {"filter": list(required)}}, source)


def _replace_vectors(
    document: StoredDocument, project: Callable[[Vectors], Vectors] | None
) -> None:
    """Projects the feature again, or forgets it; captions are to be encoded again."""
    for stored in document.captions.values():
        stored.encoded, stored.vector = False, None
    document.vector = None
    if project is None or document.feature is None:
        document.feature = None
    else:
        document.vector = project(document.feature[np.newaxis])[0]


def _unless_there(document: StoredDocument) -> Change:
    return lambda there: there or document


def _with_vectors_of(before: StoredDocument) -> Change:
    def change(document: StoredDocument | None) -> StoredDocument | None:
        if document is not None and document.vector is None:
            document.feature, document.vector = before.feature, before.vector
        return document

    return change


class ElasticDescriptions(Descriptions):
    """Descriptions over one index."""

    def __init__(self, editor: Editor) -> None:
        super().__init__(editor)
        self._editor, self._backend = editor, editor.backend

    def count(self, head: Head, name: str, folders: Sequence[str] = ()) -> int:
        """How many images the model called `name` has not described."""
        self._editor.writer.refresh()
        return self._backend.count(self._pending(head, name, folders))

    def pending(
        self, head: Head, name: str, folders: Sequence[str], after: str, limit: int
    ) -> list[str]:
        """The next of them by id, after one."""
        answer = self._backend.ask(
            query=self._pending(head, name, folders), sort=[{"id": "asc"}], search_after=[after],
            size=limit, source=False, track_total_hits=False,
        )  # fmt: skip
        return [hit["_id"] for hit in answer["hits"]["hits"]]

    def features(self, ids: Sequence[str]) -> Mapping[str, Vectors]:
        """Rows as the documents have them."""
        features: dict[str, Vectors] = {}
        for some in chunks(ids, DOCUMENTS):
            query = {"ids": {"values": some}}
            for hit in self._backend.ask(query=query, size=len(some), **_FEATURES)["hits"]["hits"]:
                feature = row(hit.get("fields", {}), FEATURE_ROW, "<f2")
                if feature is not None:
                    features[hit["_id"]] = feature
        return features

    def records(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Images by id."""
        found = self._backend.lookup(ids)
        return {image_id: document.record for image_id, document in found.items()}

    def described(self, folders: Sequence[str]) -> Iterator[Sequence[str]]:
        """Images that any model has described."""
        self._editor.writer.refresh()
        query = {"bool": {"filter": [HAS_FILE, _DESCRIBED, *self._below(folders)]}}
        for hits in self._backend.scan(query, {"source": False}):
            yield [hit["_id"] for hit in hits]

    def make_searchable(self) -> None:
        """Captions were encoded as they were written."""
        self._editor.writer.refresh()

    def _pending(self, head: Head, name: str, folders: Sequence[str]) -> Clause:
        required = [SEARCHABLE, *self._below(folders)]
        return {"bool": {"filter": required, "must_not": [{"term": {head: name}}]}}

    def _below(self, folders: Sequence[str]) -> list[Clause]:
        """Images with a file that is one of these, or below one of these folders."""
        if not folders:
            return []
        files = {path for path in folders if not Path(path).is_dir()}
        parents = sorted({str(Path(path).parent) for path in files})
        pages = self._backend.scan({"terms": {"folders": parents}}, {"source_includes": ["paths"]})
        ids = [hit["_id"] for hits in pages for hit in hits if files & {*hit["_source"]["paths"]}]
        inside = [{"terms": {"folders": list(folders)}}, {"ids": {"values": ids}}]
        return [{"bool": {"should": inside}}]
