"""Documents to the JSON of an index and back; elastic.mapping says what its fields are for.

How documents are stored: the mapping of an index.

Vectors are stored twice. `vector` fields are for finding candidates and are quantised to 8 bits in
the graph; rows of the embedded index's own precision (float32 images, float16 captions and
features) are what candidates are scored from, and what is copied back. Rows are doc values, so that
reading a document does not read them; no vector is in `_source`, which stays small.

`provenance` is what a run of the pipeline needs to know of an image, as sqlite.transfer reads it
from a catalog: its files with their times and sizes, where its captions come from, where it was
before. What runs look for is indexed beside it.
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
from capsearch.engine.protocols import NewDocument
from capsearch.engine.records import HAND, Caption, Document, ImageRecord, Tag, Vectors
from capsearch.indexer.sqlite.manifest import Identity
from capsearch.indexer.sqlite.matches import generated_texts_of, texts_of

# 1 and 2 lacked concepts, probabilities or PIPELINE_FIELDS, 3 ENRICHED_FIELDS; 4 split words at ー
SCHEMA = 5
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
PIPELINE_FIELDS: Mapping[str, Any] = {
    "encoded": {"type": "boolean"},  # has a vector, with a file or without
    "pending": _KEYWORD,  # languages of captions that no text encoder has read
    "origins": _KEYWORD,  # of captions: sidecars' images, captions files
    "past_paths": _KEYWORD,  # where the image was before
    "missing_since": {"type": "date"},  # it has no file
}
_TOKENS = {"type": "text", "analyzer": "whitespace", "norms": False}
ENRICHED_FIELDS: Mapping[str, Any] = {
    "schema": {"type": "byte"},  # that the document was written with; older ones lack it
    GENERATED_WORDS: _TOKENS,  # older documents have these among WORDS
    "surest": {"type": "rank_features"},  # of tags, by what they name and everything broader
    "tagger": _KEYWORD,  # the model that wrote the tags
    "captioner": _KEYWORD,
    "reviewed": {"type": "boolean"},  # people have accepted, corrected or rejected a caption here
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
            "vector": _vector(identity.dimension),
            "rows": {"properties": {"image": _ROW, "captions": _ROW, "feature": _ROW}},
            "provenance": {"type": "object", "enabled": False},
            "checksum": _STORED,
            **PIPELINE_FIELDS,
            **ENRICHED_FIELDS,
        },
    }


def meta(identity: Identity) -> dict[str, Any]:
    """What an index says about itself."""
    stored = {key: value for key, value in asdict(identity).items() if value is not None}
    return {META: {"schema": SCHEMA, "model": stored}}


def identity_of(stored: Mapping[str, Any]) -> Identity:
    """The model in `_meta`; SchemaTooNew when a newer capsearch wrote it."""
    if stored["schema"] > SCHEMA:
        raise SchemaTooNew(
            f"the collection has schema {stored['schema']}, this capsearch reads up to {SCHEMA}; "
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


def to_json(new: NewDocument, words_of: Callable[[str], Sequence[str]]) -> dict[str, Any]:
    """A document as Elasticsearch gets it."""
    record = new.document.record
    captions = sorted(new.document.captions, key=lambda one: one.generated)
    source: dict[str, Any] = {
        "id": record.id,
        "searchable": bool(record.paths) and new.vector is not None,
        "captioned": any(one in new.caption_vectors for one in captions),
        "paths": list(record.paths),
        "folders": folders(record.paths),
        "width": record.width,
        "height": record.height,
        "size_bytes": record.size_bytes,
        "format": record.format,
        "taken_at": record.taken_at.isoformat() if record.taken_at else None,
        "captions": [_caption(one, new.caption_vectors.get(one)) for one in captions],
        "tags": [asdict(tag) for tag in new.document.tags],
        "concepts": sorted(broader_ids(new.document.tags)),
        "labels": sorted({tag.label for tag in new.document.tags if not tag.concept}),
        WORDS: _tokens(new.document, texts_of, words_of),
        "rows": _rows(new, captions),
        "provenance": new.provenance,
        **_pipeline_fields(new),
        **_enriched_fields(new, words_of),
    }
    if new.vector is not None:
        source["vector"] = _short(new.vector)
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


def whole(hit: Mapping[str, Any]) -> NewDocument:
    """A document with its vectors, from a hit that was asked for as WHOLE."""
    source, fields = hit["_source"], hit.get("fields", {})
    encoded = [caption(one) for one in source.get("captions", ()) if one["encoded"]]
    table = row(fields, CAPTION_ROWS, "<f2")
    rows = () if table is None else table.reshape(len(encoded), -1)
    return NewDocument(
        document(source),
        row(fields, FEATURE_ROW, "<f2"),
        row(fields, IMAGE_ROW, "<f4"),
        dict(zip(encoded, rows, strict=True)),
        source.get("provenance") or {},
    )


def caption(source: Mapping[str, Any]) -> Caption:
    """One of a document's captions."""
    confidence = source.get("confidence", 1.0)  # schema 1 has none
    return Caption(source["text"], source["language"], source["source"], confidence)


def tag_confidences(source: Mapping[str, Any]) -> dict[str, float]:
    """The highest confidence of tags by concept; of older schemas none, which none are found by."""
    if source.get("schema", 0) < SCHEMA:
        return {}
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


def _pipeline_fields(new: NewDocument) -> dict[str, Any]:
    captions = new.provenance.get("captions", ())
    return {
        "encoded": new.vector is not None,
        "pending": sorted({one[1] for one in captions if not one[4]}),
        "origins": sorted({one[3] for one in captions if one[3]}),
        "past_paths": [path for path, _ in new.provenance.get("past_files", ())],
        "missing_since": new.provenance.get("missing_since"),
    }


def _enriched_fields(new: NewDocument, words_of: Callable[[str], Sequence[str]]) -> dict[str, Any]:
    enriched = new.provenance.get("enriched") or {}
    return {
        "schema": SCHEMA,
        GENERATED_WORDS: _tokens(new.document, generated_texts_of, words_of),
        "surest": _surest(new.document.tags),
        "tagger": enriched.get("tagger") or None,
        "captioner": enriched.get("captioner") or None,
        "reviewed": bool(enriched.get("rejected"))
        or any(one.source == HAND for one in new.document.captions),
    }


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


def _rows(new: NewDocument, captions: Sequence[Caption]) -> dict[str, str]:
    vectors = [new.caption_vectors[one] for one in captions if one in new.caption_vectors]
    rows = {
        "image": None if new.vector is None else np.asarray(new.vector, "<f4"),
        "captions": np.asarray(vectors, "<f2") if vectors else None,
        "feature": None if new.feature is None else np.asarray(new.feature, "<f2"),
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
