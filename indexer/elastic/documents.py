"""How documents are stored: the mapping of an index, and documents as its JSON and back.

Vectors are stored twice. `vector` fields are for finding candidates and are quantised to 8 bits in
the graph; rows of the embedded index's own precision (float32 images, float16 captions and
features) are what candidates are scored from, and what is copied back. Rows are doc values, so that
reading a document does not read them; no vector is in `_source`, which stays small.

`provenance` is what a run of the pipeline needs to know of an image besides: its files with their
times and sizes, where its captions come from, where it was before. What runs look for is indexed
beside it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import PurePath
from typing import Any

import numpy as np

from capsearch.encoders.text import concepts
from capsearch.engine.errors import SchemaTooNew
from capsearch.engine.records import HAND, Caption, Document, ImageRecord, Tag, Vectors
from capsearch.indexer.document import (
    CAPTIONS_FILES,
    StoredCaption,
    StoredDocument,
    generated_texts_of,
    texts_of,
)
from capsearch.indexer.identity import Identity

SCHEMA = 5  # another number is refused; an older one is read to rebuild the collection
META = "capsearch"
MAX_RESULT_WINDOW = 30_000  # of one answer: 2 x matches.MAX_WORD_HITS, or the newest documents
WORDS, GENERATED_WORDS = "words", "generated_words"  # fields: what people and what models wrote
IMAGE_ROW, CAPTION_ROWS, FEATURE_ROW = "rows.image", "rows.captions", "rows.feature"
WHOLE: Mapping[str, Any] = {"docvalue_fields": [IMAGE_ROW, CAPTION_ROWS, FEATURE_ROW]}
_ROW = {"type": "binary", "doc_values": True}
_KEYWORD = {"type": "keyword", "ignore_above": 8000}  # a term has at most 32,766 bytes
_STORED = {"type": "keyword", "index": False, "doc_values": False}  # in _source only
_NUMBER = {"type": "float", "index": False, "doc_values": False}  # in _source only
_NOT_IN_SOURCE = ("vector", "captions.vector", "rows", WORDS, GENERATED_WORDS, "surest")
_TOKENS = {"type": "text", "analyzer": "whitespace", "norms": False}
_RUN_FIELDS: Mapping[str, Any] = {  # what runs look for
    "schema": {"type": "byte"},  # that the document was written with
    "encoded": {"type": "boolean"},  # has a vector, with a file or without
    "pending": _KEYWORD,  # languages of captions that no text encoder has read
    "origins": _KEYWORD,  # of captions: sidecars' images, captions files
    "past_paths": _KEYWORD,  # where the image was before
    "missing_since": {"type": "date"},  # it has no file
    "tagger": _KEYWORD,  # the model that wrote the tags
    "captioner": _KEYWORD,
    "reviewed": {"type": "boolean"},  # people have accepted or rejected a caption here
}


def settings(shards: int, replicas: int) -> dict[str, Any]:
    """Settings of a new index."""
    return {
        "number_of_shards": shards,
        "number_of_replicas": replicas,
        "max_result_window": MAX_RESULT_WINDOW,
    }


def write_alias(index: str) -> str:
    """What a version is written to by: it goes with the version, so nothing is written without."""
    return f"{index}-writes"


def mapping(identity: Identity) -> dict[str, Any]:
    """The mapping of an index for vectors of one model."""
    captions = {
        "vector": _vector(identity.caption_dimension),
        "text": {"type": "text", "index": False},
        "language": _KEYWORD,
        "source": _KEYWORD,
        "written_by": _KEYWORD,
        "encoded": {"type": "boolean"},
        "confidence": _NUMBER,
    }
    return {
        "dynamic": "strict",
        "_meta": meta(identity),
        "_source": {"excludes": _NOT_IN_SOURCE},
        "properties": {
            "id": _KEYWORD,  # _id again, to sort by
            "searchable": {"type": "boolean"},  # has a file and a vector
            "captioned": {"type": "boolean"},  # a caption has a vector
            "paths": _STORED,
            "folders": _KEYWORD,
            "width": {"type": "integer"},
            "height": {"type": "integer"},
            "size_bytes": {"type": "long"},
            "format": _KEYWORD,
            "taken_at": {"type": "date"},
            "captions": {"type": "nested", "properties": captions},
            "tags": {"properties": _tag_fields()},
            "concepts": _KEYWORD,  # ids of what tags name, and of everything broader
            "labels": _KEYWORD,  # of tags that name no concept
            WORDS: _TOKENS,
            GENERATED_WORDS: _TOKENS,
            "surest": {"type": "rank_features"},  # of tags, by what they name and all broader
            "vector": _vector(identity.dimension),
            "rows": {"properties": {"image": _ROW, "captions": _ROW, "feature": _ROW}},
            "provenance": {"type": "object", "enabled": False},
            "checksum": _STORED,
            **_RUN_FIELDS,
        },
    }


def meta(identity: Identity) -> dict[str, Any]:
    """What an index says about itself."""
    return {META: {"schema": SCHEMA, "model": identity.facts()}}


def identity_of(stored: Mapping[str, Any]) -> Identity:
    """The model in `_meta`; SchemaTooNew when a newer capsearch wrote it."""
    if stored["schema"] > SCHEMA:
        raise SchemaTooNew(
            f"the collection has schema {stored['schema']}, this capsearch reads {SCHEMA}; "
            "upgrade with `pip install -U capsearch`"
        )
    return Identity(**stored["model"])


def _vector(dimension: int) -> dict[str, Any]:
    """Inner product, because of the hubness coordinate: vectors are not of unit length."""
    return {
        "type": "dense_vector",
        "dims": dimension,
        "index": True,
        "similarity": "max_inner_product",
        "index_options": {"type": "int8_hnsw"},
    }


def _tag_fields() -> dict[str, Any]:
    fields = dict.fromkeys(("label", "language", "source", "concept"), _KEYWORD)
    return {**fields, "confidence": _NUMBER}


def to_json(stored: StoredDocument, words_of: Callable[[str], Sequence[str]]) -> dict[str, Any]:
    """A document as Elasticsearch gets it."""
    document = stored.document()
    record, vectors = document.record, _vectors(stored)
    source: dict[str, Any] = {
        "id": record.id,
        "searchable": bool(record.paths) and stored.vector is not None,
        "captioned": bool(vectors),
        "paths": list(record.paths),
        "folders": folders(record.paths),
        "width": record.width,
        "height": record.height,
        "size_bytes": record.size_bytes,
        "format": record.format,
        "taken_at": record.taken_at.isoformat() if record.taken_at else None,
        "captions": [_caption(one, vectors.get(one)) for one in document.captions],
        "tags": [asdict(tag) for tag in document.tags],
        "concepts": sorted(broader_ids(document.tags)),
        "labels": sorted({tag.label for tag in document.tags if not tag.concept}),
        WORDS: _tokens(document, texts_of, words_of),
        GENERATED_WORDS: _tokens(document, generated_texts_of, words_of),
        "surest": _surest(document.tags),
        "rows": _rows(stored, vectors),
        "provenance": _provenance(stored),
        **_pipeline_fields(stored),
    }
    if stored.vector is not None:
        source["vector"] = _short(stored.vector)
    text = json.dumps(source, sort_keys=True).encode()
    return {**source, "checksum": hashlib.blake2b(text, digest_size=16).hexdigest()}


def document(source: Mapping[str, Any]) -> Document:
    """The inverse of `to_json`, for what a `_source` holds."""
    taken_at = datetime.fromisoformat(source["taken_at"]) if source["taken_at"] else None
    record = ImageRecord(
        source["id"],
        tuple(source["paths"]),
        source["width"],
        source["height"],
        source["size_bytes"],
        source["format"],
        taken_at,
    )
    captions = tuple(caption(one) for one in source.get("captions", ()))  # excludes drop []
    tags = sorted((Tag(**one) for one in source["tags"]), key=lambda one: -one.confidence)
    metadata = dict((source.get("provenance") or {}).get("metadata", ()))
    return Document(record, captions, tuple(tags), metadata)


def whole(hit: Mapping[str, Any]) -> StoredDocument:
    """A document with its vectors, from a hit that was asked for as WHOLE."""
    source, fields = hit["_source"], hit.get("fields", {})
    in_rows = [caption(one) for one in source.get("captions", ()) if one["encoded"]]
    table = row(fields, CAPTION_ROWS, "<f2")
    rows = () if table is None else table.reshape(len(in_rows), -1)
    vectors = dict(zip(in_rows, rows, strict=True))
    found, known = document(source), source["provenance"]
    captions = [
        StoredCaption(text, origin, bool(encoded), vectors.get(text))
        for text, origin, encoded in _captions_of(known)
    ]
    models = known.get("enriched") or {}
    return StoredDocument(
        found.record,
        row(fields, FEATURE_ROW, "<f2"),
        row(fields, IMAGE_ROW, "<f4"),
        {path: (mtime, size, state) for path, mtime, size, state in known["files"]},
        {one.key: one for one in captions},
        {(tag.label, tag.language, tag.source): tag for tag in found.tags},
        dict(found.metadata),
        dict(known.get("past_files", ())),
        known.get("missing_since"),
        models.get("tagger", ""),
        models.get("captioner", ""),
        frozenset(models.get("rejected", ())),
    )


def captions_from(hit: Mapping[str, Any], origin: str | None = None) -> list[Caption]:
    """The captions in the provenance of a document, or those of a captions file."""
    return [
        text
        for text, stored_origin, _ in _captions_of(hit["_source"].get("provenance", {}))
        if origin is None or (stored_origin == origin and text.source in CAPTIONS_FILES)
    ]


def _captions_of(provenance: Mapping[str, Any]) -> Iterator[tuple[Caption, str, int]]:
    """Each caption, its origin, and whether the text encoder has read it."""
    for text, language, source, origin, encoded, *confidence in provenance.get("captions", ()):
        yield Caption(text, language, source, *confidence), origin, encoded


def caption(source: Mapping[str, Any]) -> Caption:
    """One of a document's captions."""
    confidence = source.get("confidence", 1.0)  # the first schema has none
    return Caption(source["text"], source["language"], source["source"], confidence)


def tag_confidences(source: Mapping[str, Any]) -> dict[str, float]:
    """The highest confidence of tags by concept."""
    tags = sorted(source["tags"], key=lambda one: float(one["confidence"]))
    return {one["concept"]: one["confidence"] for one in tags if one["concept"]}


def row(fields: Mapping[str, Sequence[str]], name: str, dtype: str) -> Vectors | None:
    """One of `rows` from the doc values of a hit, flat; None where there is none."""
    if name not in fields:
        return None
    return np.frombuffer(base64.b64decode(fields[name][0]), dtype).astype(np.float32)


def folders(paths: Sequence[str]) -> list[str]:
    """All folders that contain these files, however far above."""
    return sorted({str(folder) for path in paths for folder in PurePath(path).parents})


def _provenance(stored: StoredDocument) -> dict[str, Any]:
    """What `whole` reads besides what searches need."""
    return {
        "files": [[path, *state] for path, state in sorted(stored.files.items())],
        "captions": [
            [one.caption.text, one.caption.language, one.caption.source, one.origin,
             int(one.encoded), one.caption.confidence]
            for one in stored.captions.values()
        ],
        "metadata": [[key, value] for key, value in sorted(stored.metadata.items())],
        "past_files": [[path, moment] for path, moment in sorted(stored.past.items())],
        "missing_since": stored.missing_since,
        "enriched": {
            "tagger": stored.tagger,
            "captioner": stored.captioner,
            "rejected": sorted(stored.rejected),
        },
    }  # fmt: skip


def _pipeline_fields(stored: StoredDocument) -> dict[str, Any]:
    captions = stored.captions.values()
    return {
        "encoded": stored.vector is not None,
        "pending": sorted({one.caption.language for one in captions if not one.encoded}),
        "origins": sorted({one.origin for one in captions if one.origin}),
        "past_paths": sorted(stored.past),
        "missing_since": stored.missing_since,
        "schema": SCHEMA,
        "tagger": stored.tagger or None,
        "captioner": stored.captioner or None,
        "reviewed": bool(stored.rejected) or any(one.caption.source == HAND for one in captions),
    }


def _vectors(stored: StoredDocument) -> dict[Caption, Vectors]:
    """Of the captions that were encoded, in the order of the document."""
    vectors = {one.caption: one.vector for one in reversed(stored.captions.values())
               if one.vector is not None}  # fmt: skip
    return {one: vectors[one] for one in stored.document().captions if one in vectors}


def _surest(tags: Sequence[Tag]) -> dict[str, float]:
    """The highest confidence of a tag of each concept or of something narrower."""
    found: dict[str, float] = {}
    for tag in tags:
        if tag.concept and tag.confidence > 0:  # a feature is positive
            for one in broader_ids([tag]) or {tag.concept}:
                found[one] = max(found.get(one, 0.0), tag.confidence)
    return found


def broader_ids(tags: Sequence[Tag]) -> set[str]:
    """The concepts that tags name, and everything broader."""
    named = {tag.concept for tag in tags} & set(concepts.all_concepts())
    return {above for one in named for above in concepts.broader(one)}


def _caption(one: Caption, vector: Vectors | None) -> dict[str, Any]:
    by = "models" if one.generated else "people"
    stored: dict[str, Any] = {**asdict(one), "written_by": by, "encoded": vector is not None}
    return stored if vector is None else {**stored, "vector": _short(vector)}


def _rows(stored: StoredDocument, vectors: Mapping[Caption, Vectors]) -> dict[str, str]:
    rows = {
        "image": None if stored.vector is None else np.asarray(stored.vector, "<f4"),
        "captions": np.asarray(list(vectors.values()), "<f2") if vectors else None,
        "feature": None if stored.feature is None else np.asarray(stored.feature, "<f2"),
    }
    return {
        name: base64.b64encode(one.tobytes()).decode()
        for name, one in rows.items()
        if one is not None
    }


def _short(vector: Vectors) -> list[float]:
    """Numbers that are short as text; candidates are only found by them."""
    return [float(one) for one in np.round(np.asarray(vector, np.float64), 5)]


def _tokens(
    document: Document,
    texts: Callable[[Document], Iterator[str]],
    words_of: Callable[[str], Sequence[str]],
) -> list[str]:
    """One entry for each text: a phrase does not run across entries (position_increment_gap)."""
    if not document.record.paths:
        return []
    return [" ".join(words_of(text)) for text in texts(document)]
