"""What models write about the images of a collection in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from capsearch.engine.protocols import Head
from capsearch.engine.records import Caption, ImageRecord, Tag, Vectors
from capsearch.indexer.document import Entry
from capsearch.indexer.elastic import requests
from capsearch.indexer.elastic.documents import FEATURE_ROW, row
from capsearch.indexer.elastic.writer import DOCUMENTS, Change, Editor, chunks

_DESCRIBED: requests.Clause = {
    "bool": {"should": [{"exists": {"field": head}} for head in ("tagger", "captioner")]}
}
_FEATURES: Mapping[str, Any] = {"source": False, "docvalue_fields": [FEATURE_ROW]}


class ElasticDescriptions:
    """indexer.store.Descriptions over one index: whole documents, changed by an Editor."""

    def __init__(self, editor: Editor) -> None:
        self._editor, self._backend = editor, editor.backend

    def count(self, head: Head, name: str, folders: Sequence[str] = ()) -> int:
        """How many images the model called `name` has not described."""
        self._editor.writer.refresh()
        return self._backend.count(self._pending(head, name, folders))

    def pending(
        self, head: Head, name: str, folders: Sequence[str], after: str, limit: int
    ) -> list[str]:
        """The next of them by id, after one."""
        found = self._backend.ask(
            query=self._pending(head, name, folders), sort=[{"id": "asc"}], search_after=[after],
            size=limit, source=False, track_total_hits=False,
        )  # fmt: skip
        return [hit["_id"] for hit in found["hits"]["hits"]]

    def features(self, ids: Sequence[str]) -> Mapping[str, Vectors]:
        """Rows as the documents have them."""
        found: dict[str, Vectors] = {}
        for some in chunks(ids, DOCUMENTS):
            query = {"ids": {"values": some}}
            for hit in self._backend.ask(query=query, size=len(some), **_FEATURES)["hits"]["hits"]:
                feature = row(hit.get("fields", {}), FEATURE_ROW, "<f2")
                if feature is not None:
                    found[hit["_id"]] = feature
        return found

    def records(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Images by id."""
        return {image_id: one.record for image_id, one in self._backend.lookup(ids).items()}

    def reset(self, folders: Sequence[str] = ()) -> None:
        """Makes images pending for every model."""
        self._editor.writer.refresh()
        query = {"bool": {"filter": [requests.HAS_FILE, _DESCRIBED, *self._below(folders)]}}
        for hits in self._backend.scan(query, {"source": False}):
            self._editor.edit({hit["_id"]: _changed(Entry.forget_models) for hit in hits})

    def put_tags(self, model: str, tags: Mapping[str, Sequence[Tag]]) -> None:
        """Makes these the only generated tags of images."""

        def change(image_id: str) -> Change:
            return _changed(lambda entry: entry.put_generated_tags(model, tags[image_id]))

        self._editor.edit({image_id: change(image_id) for image_id in tags})

    def put_captions(self, model: str, captions: Mapping[str, Sequence[Caption]]) -> int:
        """Makes these the only generated captions of images, but for what people decided."""
        kept: dict[str, int] = {}

        def change(image_id: str) -> Change:
            def step(entry: Entry) -> None:
                kept[image_id] = entry.put_generated_captions(model, captions[image_id])

            return _changed(step)

        self._editor.edit({image_id: change(image_id) for image_id in captions})
        return sum(kept.values())

    def accept(self, image_id: str, caption: Caption, text: str, language: str) -> bool:
        """A generated caption becomes a person's."""
        return self._review(image_id, lambda entry: entry.accept(caption, text, language))

    def reject(self, image_id: str, caption: Caption) -> bool:
        """A generated caption goes and does not come back."""
        return self._review(image_id, lambda entry: entry.reject(caption))

    def _review(self, image_id: str, step: Callable[[Entry], bool]) -> bool:
        done = False

        def change(entry: Entry) -> None:
            nonlocal done
            done = step(entry)

        self._editor.edit({image_id: _changed(change)})
        self._editor.writer.refresh()
        return done

    def _pending(self, head: Head, name: str, folders: Sequence[str]) -> requests.Clause:
        required = [requests.SEARCHABLE, *self._below(folders)]
        return {"bool": {"filter": required, "must_not": [{"term": {head: name}}]}}

    def _below(self, folders: Sequence[str]) -> list[requests.Clause]:
        """Images with a file that is one of these, or below one of these folders."""
        if not folders:
            return []
        files = {one for one in folders if not Path(one).is_dir()}
        parents = sorted({str(Path(one).parent) for one in files})
        pages = self._backend.scan({"terms": {"folders": parents}}, {"source_includes": ["paths"]})
        ids = [hit["_id"] for hits in pages for hit in hits if files & {*hit["_source"]["paths"]}]
        inside = [{"terms": {"folders": list(folders)}}, {"ids": {"values": ids}}]
        return [{"bool": {"should": inside}}]


def _changed(step: Callable[[Entry], object]) -> Change:
    def change(entry: Entry | None) -> Entry | None:
        if entry is not None:
            step(entry)
        return entry

    return change
