"""Text that no model knows finds words, and nothing else, at once (issue 11, 11)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from embedded_toys import collection_of

from capsearch.engine.evidence import SingleSource
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Document, Filters, ImageRecord

COUNT = 2_000
NOTHING = np.zeros(3, np.float32)


def documents() -> list[Document]:
    return [
        Document(ImageRecord(f"{n:04}", (f"/p/{n}.jpg",), 4, 3, 10, "JPEG", None), (), ())
        for n in range(COUNT)
    ]


def test_a_query_without_a_vector_looks_at_the_documents_with_its_words_only(tmp_path, monkeypatch):
    """Issue 11, 11: it walked the whole collection, 1.4 s at 100,000."""
    named = documents()
    named[7] = replace(named[7], record=replace(named[7].record, paths=("/p/zyzzyva.jpg",)))
    vectors = {one.record.id: np.ones(3, np.float32) for one in named}
    scored: list[int] = []
    with collection_of(tmp_path / "index", named, vectors, ()) as collection:
        from capsearch.indexer.sqlite import search

        real = search.Revision.rows
        monkeypatch.setattr(
            search.Revision,
            "rows",
            lambda self, slots: scored.append(len(slots)) or real(self, slots),
        )
        query = EncodedQuery(SingleSource("image"), image=NOTHING, words=("zyzzyva",))
        assert len(collection.backend.search(query, Filters(), 5)) == 1
        assert scored == [1]
        assert collection.backend.search(replace(query, words=()), Filters(), 5) == ()
