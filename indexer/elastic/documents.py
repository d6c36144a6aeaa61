"""Documents to the JSON of an index and back; elastic.mapping says what its fields are for."""

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

from capsearch.encoders import concepts
from capsearch.engine.protocols import NewDocument
from capsearch.engine.records import Caption, Document, ImageRecord, Tag, Vectors
from capsearch.indexer.elastic.mapping import (
    CAPTION_ROWS,
    FEATURE_ROW,
    GENERATED_WORDS,
    IMAGE_ROW,
    SCHEMA,
    WORDS,
)
from capsearch.indexer.embedded.words import generated_texts_of, texts_of
from capsearch.indexer.store import HAND


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
