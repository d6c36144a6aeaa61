"""Contract tests of every VectorIndex and Catalog: inherit a class and implement `build`.

FAISS, SQLite and the fakes pass them; other backends must pass them too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from math import sqrt

import numpy as np
import pytest

from capsearch.engine.protocols import Catalog, VectorIndex
from capsearch.engine.records import Caption, Filters, ImageRecord, Match, Tag, Vectors

Row = tuple[str, int, Vectors]
X, Y = np.array([1, 0, 0], np.float32), np.array([0, 1, 0], np.float32)
DIAGONAL = np.array([sqrt(0.5), sqrt(0.5), 0], np.float32)


class VectorIndexContract:
    """Inherit and implement `build`; `tolerance` is the allowed error of a score."""

    tolerance = 1e-6

    def build(self, rows: Sequence[Row]) -> VectorIndex:
        raise NotImplementedError

    def approx(self, *matches: tuple[str, float, int]) -> list[tuple[object, ...]]:
        return [
            (one, pytest.approx(score, abs=self.tolerance), item) for one, score, item in matches
        ]

    def listed(self, matches: Sequence[Match]) -> list[tuple[object, ...]]:
        return [(match.image_id, match.score, match.item) for match in matches]

    def test_scores_are_inner_products_best_first(self):
        index = self.build([("a", 0, X), ("b", 0, DIAGONAL), ("c", 0, Y)])
        expected = self.approx(("a", 1, 0), ("b", sqrt(0.5), 0), ("c", 0, 0))
        assert self.listed(index.search(X, 3)) == expected

    def test_no_more_than_count_are_returned(self):
        index = self.build([("a", 0, X), ("b", 0, DIAGONAL), ("c", 0, Y)])
        assert [match.image_id for match in index.search(X, 2)] == ["a", "b"]
        assert len(index.search(X, 100)) == 3

    def test_an_image_appears_once_with_its_best_item(self):
        index = self.build([("a", 1, Y), ("a", 2, X), ("a", 3, DIAGONAL), ("b", 4, DIAGONAL)])
        expected = self.approx(("a", 1, 2), ("b", sqrt(0.5), 4))
        assert self.listed(index.search(X, 10)) == expected

    def test_ties_break_by_image_id(self):
        index = self.build([("c", 0, X), ("a", 0, X), ("b", 0, X)])
        assert [match.image_id for match in index.search(X, 2)] == ["a", "b"]

    def test_among_equal_items_the_lowest_number_wins(self):
        index = self.build([("a", 9, X), ("a", 3, X)])
        assert index.search(X, 1)[0].item == 3
        assert index.scores(X, ["a"])["a"].item == 3

    def test_many_ties_are_cut_by_image_id(self):
        ids = [f"i{n * 37 % 500:03}" for n in range(500)]
        index = self.build([(one, 0, X) for one in ids])
        assert [match.image_id for match in index.search(X, 5)] == sorted(ids)[:5]

    def test_a_zero_query_scores_everything_zero(self):
        index = self.build([("b", 0, X), ("a", 0, Y)])
        assert self.listed(index.search(np.zeros(3, np.float32), 5)) == [("a", 0, 0), ("b", 0, 0)]

    def test_negative_scores_are_found_too(self):
        index = self.build([("a", 0, -X), ("b", 0, X)])
        assert self.listed(index.search(X, 5)) == self.approx(("b", 1, 0), ("a", -1, 0))

    def test_allowed_restricts_the_images(self):
        index = self.build([("a", 0, X), ("b", 0, DIAGONAL), ("c", 0, Y)])
        assert [match.image_id for match in index.search(X, 5, {"c", "b", "zzz"})] == ["b", "c"]
        assert index.search(X, 5, frozenset()) == ()

    def test_a_smaller_count_returns_the_beginning_of_the_same_ranking(self):
        rng = np.random.default_rng(0)
        vectors = rng.integers(-1, 2, (300, 3)).astype(np.float32)  # 27 directions, so many ties
        index = self.build([(f"i{n % 200:03}", n, row) for n, row in enumerate(vectors)])
        whole = index.search(DIAGONAL, 1000)
        assert len(whole) == 200
        for count in (1, 7, 64, 65, 150, 199):
            assert index.search(DIAGONAL, count) == whole[:count]

    def test_scores_of_given_images_are_those_of_the_search(self):
        index = self.build([("a", 1, Y), ("a", 2, DIAGONAL), ("b", 3, X), ("c", 4, Y)])
        found = {match.image_id: match for match in index.search(X, 10)}
        assert index.scores(X, ["c", "a"]) == {"a": found["a"], "c": found["c"]}

    def test_images_without_a_vector_have_no_score(self):
        index = self.build([("a", 0, X)])
        assert index.scores(X, ["unknown"]) == {}
        assert index.scores(X, []) == {}

    def test_the_first_vector_of_an_image_can_be_read(self):
        index = self.build([("a", 1, X), ("a", 2, Y)])
        assert index.vector("a") == pytest.approx(X, abs=self.tolerance)
        assert index.vector("unknown") is None

    def test_its_length_is_the_number_of_vectors(self):
        assert len(self.build([("a", 1, X), ("a", 2, Y), ("b", 3, Y)])) == 3

    def test_an_empty_index_finds_nothing(self):
        index = self.build([])
        assert (len(index), index.search(X, 5), index.scores(X, ["a"])) == (0, (), {})
        assert index.vector("a") is None

    def test_the_query_is_not_changed(self):
        query = np.array([3, 4, 0], np.float32)
        self.build([("a", 0, X)]).search(query, 1)
        assert query.tolist() == [3, 4, 0]


A, B, C = "a" * 32, "b" * 32, "c" * 32
RECORDS = (
    ImageRecord(A, ("/p/a.jpg", "/p/copies/a.jpg"), 30, 20, 900, "JPEG", datetime(2024, 5, 1, 12)),
    ImageRecord(B, ("/p/sub/b.png",), 10, 10, 100, "PNG", datetime(2024, 5, 31, 23, 59)),
    ImageRecord(C, ("/more/c.gif",), 5, 5, 50, "GIF", None),
)
CAPTIONS = (
    (A, Caption("written by a model", "en", "model:trio")),
    (A, Caption("一只猫", "zh", "sidecar")),
    (B, Caption("猫がいる", "ja", "model:trio")),
    (B, Caption("a dog", "en", "iptc")),
)
TAGS: Mapping[str, tuple[Tag, ...]] = {
    A: (Tag("sofa", "en", 0.4, "model:trio"), Tag("cat", "en", 1.0, "iptc")),
    B: (Tag("dog", "en", 0.9, "model:trio"), Tag("sofa", "en", 0.8, "model:trio")),
}


class CatalogContract:
    """Inherit and implement `build` and `number`."""

    def build(
        self,
        records: Sequence[ImageRecord],
        captions: Sequence[tuple[str, Caption]],
        tags: Mapping[str, tuple[Tag, ...]],
    ) -> Catalog:
        raise NotImplementedError

    def number(self, catalog: Catalog, at: int) -> int:
        """The number of the caption at position `at` of those given to `build`."""
        raise NotImplementedError

    def full(self) -> Catalog:
        return self.build(RECORDS, CAPTIONS, TAGS)

    def selected(self, **filters) -> set[str]:
        return set(self.full().select(Filters(**filters)))

    def test_records_are_returned_as_they_were_stored(self):
        assert self.full().images([C, A, "unknown"]) == {A: RECORDS[0], C: RECORDS[2]}

    def test_many_ids_can_be_looked_up_at_once(self):
        ids = [f"{n:032x}" for n in range(2500)]
        records = [ImageRecord(one, (f"/p/{one}.jpg",), 1, 1, 1, "JPEG") for one in ids]
        assert list(self.build(records, (), {}).images(ids)) == ids

    def test_captions_by_people_come_before_captions_by_models(self):
        captions = self.full().captions([A, B, C])
        assert [caption.source for caption in captions[A]] == ["sidecar", "model:trio"]
        assert [caption.source for caption in captions[B]] == ["iptc", "model:trio"]
        assert captions[C] == ()

    def test_tags_are_sorted_by_falling_confidence(self):
        tags = self.full().tags([A, B, C])
        assert [tag.label for tag in tags[A]] == ["cat", "sofa"]
        assert tags[B] == TAGS[B]
        assert tags[C] == ()

    def test_unknown_ids_are_left_out(self):
        catalog = self.full()
        assert catalog.images(["x"]) == catalog.captions(["x"]) == catalog.tags(["x"]) == {}

    def test_a_caption_can_be_read_by_its_number(self):
        catalog = self.full()
        for at, (_, caption) in enumerate(CAPTIONS):
            assert catalog.caption(self.number(catalog, at)) == caption

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
