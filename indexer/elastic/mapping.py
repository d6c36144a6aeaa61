"""How documents are stored: the mapping of an index.

Vectors are stored twice. `vector` fields are for finding candidates and are quantised to 8 bits in
the graph; rows of the embedded index's own precision (float32 images, float16 captions and
features) are what candidates are scored from, and what is copied back. Rows are doc values, so that
reading a document does not read them; no vector is in `_source`, which stays small.

`provenance` is what a run of the pipeline needs to know of an image, as embedded.transfer reads it
from a catalog: its files with their times and sizes, where its captions come from, where it was
before. What runs look for is indexed beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from capsearch.engine.errors import SchemaTooNew
from capsearch.indexer.embedded.manifest import Identity

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
