"""The part of a Backend's contract that is about documents: lookup, filters, newest, facets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime

import numpy as np
import pytest

from capsearch.engine.evidence import NamedConcepts, SingleSource
from capsearch.engine.protocols import Backend
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Document, Facet, Filters, ImageRecord, Tag, Vectors

A, B, C = "a" * 32, "b" * 32, "c" * 32
DOCUMENTS = (
    Document(
        ImageRecord(
            A, ("/p/a.jpg", "/p/copies/a.jpg"), 30, 20, 900, "JPEG", datetime(2024, 5, 1, 12)
        ),
        (Caption("一只猫", "zh", "sidecar"), Caption("written by a model", "en", "model:trio")),
        (Tag("cat", "en", 1.0, "iptc"), Tag("sofa", "en", 0.4, "model:trio")),
    ),
    Document(
        ImageRecord(B, ("/p/sub/b.png",), 10, 10, 100, "PNG", datetime(2024, 5, 31, 23, 59)),
        (Caption("a dog", "en", "iptc"), Caption("猫がいる", "ja", "model:trio")),
        (Tag("dog", "en", 0.9, "model:trio"), Tag("sofa", "en", 0.8, "model:trio")),
    ),
    Document(ImageRecord(C, ("/more/c.gif",), 5, 5, 50, "GIF", None)),
)
VECTOR = np.array([1, 0, 0], np.float32)


def undated(image_id: str) -> Document:
    return Document(ImageRecord(image_id, (f"/p/{image_id}.jpg",), 1, 1, 1, "JPEG"))


class DocumentContract:
    """Inherit and implement `build`."""

    def build(
        self,
        documents: Sequence[Document],
        vectors: Mapping[str, Vectors],
        captions: Sequence[tuple[str, Caption, Vectors]],
    ) -> Backend:
        """A backend of these; captions come in the order they were written."""
        raise NotImplementedError

    def full(self, documents: Sequence[Document] = DOCUMENTS) -> Backend:
        return self.build(documents, {one.record.id: VECTOR for one in documents}, ())

    def selected(self, **filters) -> set[str]:
        """The ids that pass a filter, by all ways that take one."""
        backend, chosen = self.full(), Filters(**filters)
        query = EncodedQuery(SingleSource("image"), VECTOR)
        found = {one.document.record.id for one in backend.search(query, chosen, 10)}
        assert {one.record.id for one in backend.newest(chosen, 10)} == found
        return found

    def test_documents_are_returned_as_they_were_stored(self):
        found = self.full().lookup([C, A, "unknown"])
        assert found == {A: DOCUMENTS[0], C: DOCUMENTS[2]}

    def test_many_ids_can_be_looked_up_at_once(self):
        ids = [f"{n:032x}" for n in range(1200)]
        assert sorted(self.full([undated(one) for one in ids]).lookup(ids)) == ids

    def test_captions_by_people_come_before_captions_by_models(self):
        first = DOCUMENTS[0]
        turned = replace(first, captions=first.captions[::-1], tags=first.tags[::-1])
        captions = [(A, caption, VECTOR) for caption in turned.captions]  # the model wrote first
        backend = self.build([first], {A: VECTOR}, captions)
        assert [one.source for one in backend.lookup([A])[A].captions] == ["sidecar", "model:trio"]

    def test_tags_are_sorted_by_falling_confidence(self):
        assert [tag.label for tag in self.full().lookup([A])[A].tags] == ["cat", "sofa"]
        assert [tag.confidence for tag in self.full().lookup([B])[B].tags] == [0.9, 0.8]

    def test_its_length_is_the_number_of_documents(self):
        assert len(self.full()) == 3

    def test_a_document_without_a_file_is_not_found(self):
        gone = replace(DOCUMENTS[0], record=replace(DOCUMENTS[0].record, paths=()))
        backend = self.full([gone, DOCUMENTS[2]])
        query = EncodedQuery(SingleSource("image"), VECTOR)
        found = backend.search(query, Filters(), 5)
        assert [one.document.record.id for one in found] == [C]
        assert [one.record.id for one in backend.newest(Filters(), 5)] == [C]
        assert (len(backend), backend.lookup([A]), backend.vector(A)) == (1, {}, None)

    def test_a_document_that_is_not_encoded_yet_is_known_but_not_found(self):
        backend = self.build(DOCUMENTS, {B: VECTOR, C: VECTOR}, ())
        found = backend.search(EncodedQuery(SingleSource("image"), VECTOR), Filters(), 5)
        assert [one.document.record.id for one in found] == [B, C]
        assert (len(backend), backend.vector(A)) == (2, None)
        assert set(backend.lookup([A])) == {A}

    def test_the_empty_filter_selects_everything(self):
        assert self.selected() == {A, B, C}

    def test_folders_select_the_files_below_any_of_them(self):
        assert self.selected(folders=("/p",)) == {A, B}  # and not /more
        assert self.selected(folders=("/p/sub", "/more")) == {B, C}
        assert self.selected(folders=("/p/copies/",)) == {A}
        assert self.selected(folders=("/",)) == {A, B, C}
        assert self.selected(folders=("/elsewhere",)) == set()

    def test_an_image_must_have_all_tags(self):
        assert self.selected(tags=("sofa",)) == {A, B}
        assert self.selected(tags=("sofa", "cat")) == {A}
        assert self.selected(tags=("'; DROP TABLE images; --",)) == set()

    def test_a_tag_is_found_by_every_name_and_by_what_is_broader(self):
        """People's tags and models' alike."""
        tagged = self.linked()
        for name in ("猫", "ネコ", "貓", "cat", "animal", "动物", "pet"):
            assert self.ids(tagged, name) == {A}, name
        assert self.ids(tagged, "furniture") == {A, B}
        assert self.ids(tagged, "沙发") == {A, B}
        assert self.ids(tagged, "siamese cat") == set()  # narrower than what is known
        assert self.ids(tagged, "Grandma") == {B}  # no concept

    def test_tag_facets_count_concepts_and_what_is_narrower(self):
        found = {one.value: (one.images, one.concept) for one in self.linked().facets().tags}
        assert found["couch"] == (2, "couch")
        assert found["cat"] == (1, "cat")
        assert found["Grandma"] == (1, "")
        assert "animal" not in found  # only the cat is one
        assert "沙发" not in found  # the couch

    def linked(self) -> Backend:
        first = (Tag("cat", "en", 0.9, "model:m", "cat"), Tag("沙发", "zh", 1.0, "iptc", "couch"))
        second = (
            Tag("couch", "en", 0.8, "model:m", "couch"),
            Tag("Grandma", "en", 1.0, "iptc"),
        )
        tags = (first, second, ())
        return self.full(
            [
                replace(one, tags=tuple(sorted(given, key=lambda tag: -tag.confidence)))
                for one, given in zip(DOCUMENTS, tags, strict=True)
            ]
        )

    def ids(self, backend: Backend, tag: str) -> set[str]:
        return {one.record.id for one in backend.newest(Filters(tags=(tag,)), 10)}

    def test_dates_are_inclusive_and_undated_images_do_not_pass(self):
        assert self.selected(taken_from=date(2024, 5, 1)) == {A, B}
        assert self.selected(taken_until=date(2024, 5, 31)) == {A, B}
        assert self.selected(taken_from=date(2024, 5, 2)) == {B}
        assert self.selected(taken_until=date(2024, 5, 30)) == {A}

    def test_captions_select_by_language_and_author(self):
        assert self.selected(caption_language="en") == {A, B}
        assert self.selected(caption_language="ja") == {B}
        assert self.selected(written_by="people") == self.selected(written_by="models") == {A, B}

    def test_one_caption_must_have_both_language_and_author(self):
        assert self.selected(caption_language="en", written_by="people") == {B}
        assert self.selected(caption_language="en", written_by="models") == {A}

    def test_all_conditions_must_hold(self):
        assert self.selected(folders=("/p",), tags=("dog",), caption_language="ja") == {B}
        assert self.selected(folders=("/more",), tags=("dog",)) == set()

    def test_newest_first_ties_by_id_undated_last(self):
        dated = [
            replace(undated(one), record=replace(undated(one).record, taken_at=moment))
            for one, moment in [
                ("d", datetime(2024, 5, 1)),
                ("c", None),
                ("b", datetime(2020, 1, 1)),
                ("a", datetime(2024, 5, 1)),
            ]
        ]
        backend = self.full(dated)
        assert [one.record.id for one in backend.newest(Filters(), 9)] == ["a", "d", "b", "c"]
        assert [one.record.id for one in backend.newest(Filters(), 2, 1)] == ["d", "b"]
        early = Filters(taken_until=date(2023, 1, 1))
        assert [one.record.id for one in backend.newest(early, 9)] == ["b"]

    def test_facets_count_documents(self):
        facets = self.full().facets()
        assert facets.tags == (Facet("sofa", 2), Facet("cat", 1), Facet("dog", 1))
        assert facets.caption_languages == (Facet("en", 2), Facet("ja", 1), Facet("zh", 1))
        assert facets.written_by == (Facet("models", 2), Facet("people", 2))
        assert (facets.earliest, facets.latest) == (date(2024, 5, 1), date(2024, 5, 31))
        counted = {one.value: one.images for one in facets.folders}
        assert (counted["/p"], counted["/p/copies"], counted["/more"]) == (2, 1, 1)

    def test_an_empty_backend_has_no_facets(self):
        facets = self.full([]).facets()
        assert (facets.tags, facets.folders, facets.earliest) == ((), (), None)

    def test_what_a_query_names_is_part_of_the_score_of_an_image(self):
        x, y = np.eye(3, dtype=np.float32)[:2]
        named = NamedConcepts(np.stack([4 * y, -4 * x]), np.float32([0.5, 0.0]), (1, 1), weight=0.2)
        vectors = {A: x, B: (x + y) / np.float32(np.sqrt(2)), C: y}
        backend = self.build(DOCUMENTS, vectors, ())
        found = backend.search(EncodedQuery(SingleSource("image"), x, named=named), Filters(), 3)
        expected = {
            one: float(vector @ x) + named.scores(vector[None])[0]
            for one, vector in vectors.items()
        }
        scores = {one.document.record.id: one.score for one in found}
        assert scores == pytest.approx(expected, abs=1e-3)
        assert list(scores) == sorted(expected, key=lambda one: -expected[one])
