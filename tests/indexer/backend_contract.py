"""What every Backend does: inherit BackendContract and implement `build`.

The fake and the embedded backend pass it; others must pass it too. Vectors have three numbers,
queries three as well: what a query and a document score is their inner product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np
import pytest
from document_contract import DocumentContract

from capsearch.engine.evidence import (
    CalibratedEvidence,
    ConvexCombination,
    EvidenceModel,
    KindWeights,
    SingleSource,
    word_weight,
)
from capsearch.engine.protocols import Backend, Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Document, Filters, ImageRecord, Tag, Vectors

X, Y = np.array([1, 0, 0], np.float32), np.array([0, 1, 0], np.float32)
DIAGONAL = np.array([sqrt(0.5), sqrt(0.5), 0], np.float32)
ZERO = np.zeros(3, np.float32)
CM, CL = SingleSource("image"), SingleSource("caption")
# Log-odds: 2 CM, and where there are captions 4 CL of people's, 3 of models', 5 of words.
EVIDENCE = EvidenceModel(
    kinds={
        "": KindWeights(-1.0, {"image": 2.0, "words": 5.0}, {}),
        "caption": KindWeights(-2.0, {"image": 2.0, "caption": 4.0, "words": 5.0}, {}),
        "generated": KindWeights(-3.0, {"image": 2.0, "generated": 3.0, "words": 5.0}, {}),
    },
    size=1,
    size_exponent=0.0,
    cutoff=0.0,
)


def calibrated() -> CalibratedEvidence:
    return CalibratedEvidence(EVIDENCE, {}, documents=1)


def document(
    image_id: str, *captions: Caption, tags: Sequence[str] = (), path: str = ""
) -> Document:
    record = ImageRecord(image_id, (path or f"/p/{image_id}.jpg",), 4, 3, 9, "JPEG")
    return Document(record, captions, tuple(Tag(label, "en", 1.0, "iptc") for label in tags))


def said(text: str) -> Caption:
    return Caption(text, "en", "sidecar")


def generated(text: str) -> Caption:
    return Caption(text, "en", "model:m")


def ids(found: Sequence[Found]) -> list[str]:
    return [one.document.record.id for one in found]


class BackendContract(DocumentContract):
    """`tolerance` is the allowed error of a score: captions may be stored in half precision."""

    tolerance = 1e-3

    def images(self, **vectors: Vectors) -> Backend:
        """Images with these vectors and nothing written about them."""
        return self.build([document(one) for one in vectors], vectors, ())

    def captioned(
        self, captions: Sequence[tuple[str, Caption, Vectors]], **images: Vectors
    ) -> Backend:
        written: dict[str, list[Caption]] = {one: [] for one in images}
        for owner, caption, _ in captions:
            written[owner].append(caption)
        # As documents list them: people's first.
        documents = [
            document(one, *sorted(texts, key=lambda text: text.generated))
            for one, texts in written.items()
        ]
        return self.build(documents, images, captions)

    def scores(self, backend: Backend, query: EncodedQuery, limit: int = 10) -> dict[str, float]:
        found = backend.search(query, Filters(), limit)
        return {one.document.record.id: one.score for one in found}

    def approx(self, scores: Mapping[str, float]) -> object:
        return pytest.approx(dict(scores), abs=self.tolerance)

    def test_scores_are_inner_products_best_first(self):
        found = self.images(a=X, b=DIAGONAL, c=Y).search(EncodedQuery(CM, X), Filters(), 3)
        assert ids(found) == ["a", "b", "c"]
        assert [one.score for one in found] == pytest.approx([1, sqrt(0.5), 0], abs=self.tolerance)
        assert [one.contributions.cm for one in found] == [one.score for one in found]

    def test_hits_come_with_their_documents(self):
        cat = document("a", said("a cat"), tags=["pet"])
        [found] = self.build([cat], {"a": X}, ()).search(EncodedQuery(CM, X), Filters(), 3)
        assert found.document == cat

    def test_no_more_than_the_limit_are_returned(self):
        backend = self.images(a=X, b=DIAGONAL, c=Y)
        assert ids(backend.search(EncodedQuery(CM, X), Filters(), 2)) == ["a", "b"]
        assert len(backend.search(EncodedQuery(CM, X), Filters(), 100)) == 3

    def test_an_image_appears_once_with_its_best_caption(self):
        texts = [said("first"), said("second"), said("third")]
        rows = [
            ("a", texts[0], Y),
            ("a", texts[1], X),
            ("a", texts[2], DIAGONAL),
            ("b", texts[0], DIAGONAL),
        ]
        backend = self.captioned(rows, a=Y, b=Y)
        found = backend.search(EncodedQuery(CL, caption=X), Filters(), 10)
        assert [one.contributions.caption for one in found] == [texts[1], texts[0]]
        assert [one.contributions.cl for one in found] == pytest.approx([1, sqrt(0.5)], abs=1e-3)
        assert ids(found) == ["a", "b"] and found[0].contributions.cm is None

    @pytest.mark.parametrize("text", [said("zebra"), generated("antelope")])
    def test_among_equal_captions_peoples_and_older_ones_win(self, text):
        backend = self.captioned(
            [("a", generated("older"), Y), ("a", text, X), ("a", said("horse"), X)], a=Y
        )
        [found] = backend.search(EncodedQuery(CL, caption=X), Filters(), 1)
        assert found.contributions.caption == (said("horse") if text.generated else text)

    def test_ties_break_by_image_id(self):
        assert ids(self.images(c=X, a=X, b=X).search(EncodedQuery(CM, X), Filters(), 2)) == [
            "a",
            "b",
        ]

    def test_many_ties_are_cut_by_image_id(self):
        names = [f"i{n * 37 % 500:03}" for n in range(500)]
        backend = self.images(**dict.fromkeys(names, X))
        assert ids(backend.search(EncodedQuery(CM, X), Filters(), 5)) == sorted(names)[:5]

    def test_zero_vectors_find_nothing(self):
        backend = self.captioned([("a", said("cat"), X)], a=X, b=Y)
        for query in (EncodedQuery(CM, ZERO), EncodedQuery(CL, caption=ZERO), EncodedQuery(CM)):
            assert backend.search(query, Filters(), 5) == ()

    def test_negative_scores_are_found_too(self):
        assert self.scores(self.images(a=-X, b=X), EncodedQuery(CM, X)) == self.approx(
            {"b": 1, "a": -1}
        )

    def test_a_least_score_is_inclusive(self):
        backend = self.images(a=X, b=Y, c=-X)
        assert set(self.scores(backend, EncodedQuery(CM, X, min_score=0.0))) == {"a", "b"}
        assert self.scores(backend, EncodedQuery(CM, X, min_score=1.5)) == {}

    def test_filters_restrict_the_images(self):
        backend = self.build(
            [document("a"), document("b", tags=["cat"]), document("c", tags=["cat"])],
            {"a": X, "b": DIAGONAL, "c": Y}, (),
        )  # fmt: skip
        assert ids(backend.search(EncodedQuery(CM, X), Filters(tags=("cat",)), 5)) == ["b", "c"]
        assert backend.search(EncodedQuery(CM, X), Filters(tags=("dog",)), 5) == ()

    @pytest.mark.parametrize("fusion", [CM, CL, ConvexCombination(0.5, 0.25), calibrated()])
    def test_pages_neither_repeat_nor_drop_and_shorter_answers_begin_longer_ones(self, fusion):
        rng = np.random.default_rng(0)
        vectors = rng.integers(-1, 2, (200, 3)).astype(np.float32)  # 27 directions, so many ties
        rows = rng.integers(-1, 2, (150, 3)).astype(np.float32)
        backend = self.captioned(
            [
                (f"i{n % 100:03}", (generated if n % 3 else said)(f"text {n}"), row)
                for n, row in enumerate(rows)
            ],
            **{f"i{n:03}": row for n, row in enumerate(vectors)},
        )
        query = EncodedQuery(fusion, DIAGONAL, DIAGONAL)
        whole = backend.search(query, Filters(), 1000)
        assert len(whole) == (100 if fusion is CL else 200)
        assert list(whole) == sorted(whole, key=lambda one: (-one.score, one.document.record.id))
        for limit in (1, 7, 64, 150, 199):
            assert backend.search(query, Filters(), limit) == whole[:limit]
        pages = [backend.search(query, Filters(), 9, at) for at in range(0, 207, 9)]
        assert tuple(one for page in pages for one in page) == whole

    def test_an_image_without_captions_scores_the_floor_in_the_convex_combination(self):
        backend = self.captioned([("a", said("cat"), DIAGONAL)], a=Y, b=X)
        query = EncodedQuery(ConvexCombination(0.4, floor=0.1), X, X)
        assert self.scores(backend, query) == self.approx(
            {"a": 0.4 * sqrt(0.5) + 0.6 * 0, "b": 0.4 * 0.1 + 0.6 * 1}
        )

    def test_an_image_without_captions_is_not_found_by_captions(self):
        backend = self.captioned([("a", said("cat"), -X)], a=Y, b=X)
        assert ids(backend.search(EncodedQuery(CL, caption=X), Filters(), 5)) == ["a"]

    def test_calibrated_evidence_knows_what_each_image_has(self):
        backend = self.captioned(
            [("said", said("cat"), X), ("seen", generated("cat"), X)], said=Y, seen=Y, bare=Y
        )
        scores = self.scores(backend, EncodedQuery(calibrated(), X, X))
        assert scores == self.approx({"said": -2 + 4 * 1, "seen": -3 + 3 * 1, "bare": -1})

    def test_generated_captions_stand_beside_those_of_people(self):
        backend = self.captioned([("a", said("dog"), Y), ("a", generated("cat"), X)], a=Y)
        assert self.scores(backend, EncodedQuery(CL, caption=X)) == self.approx({"a": 1})
        # The kind of both was not fitted, so people's captions decide: -2 + 4 * 0.
        assert self.scores(backend, EncodedQuery(calibrated(), X, X)) == self.approx({"a": -2})

    def test_words_are_found_in_captions_tags_and_file_names(self):
        backend = self.build(
            [document("a", said("an Okapi")), document("b", tags=["okapi"]),
             document("c", path="/p/okapi 7.jpg"), document("d")],
            {"a": Y, "b": Y, "c": Y, "d": X}, (),
        )  # fmt: skip
        found = backend.search(EncodedQuery(calibrated(), X, words=("okapi",)), Filters(), 5)
        assert ids(found) == ["a", "b", "c", "d"]
        assert [one.contributions.words for one in found] == [1, 1, 1, 0]
        assert found[0].contributions.log_odds == {"words": 5.0, "prior": -1.0}
        assert found[0].score == -1 + 5

    def test_rarer_words_weigh_more(self):
        backend = self.build(
            [document("a", said("okapi")), document("b", said("zoo")), document("c", said("zoo"))],
            dict.fromkeys("abc", Y), (),
        )  # fmt: skip
        query = EncodedQuery(calibrated(), X, words=("okapi", "zoo", "unheard"))
        okapi, zoo, unheard = (word_weight(3, count) for count in (1, 2, 0))
        found = backend.search(query, Filters(), 5)
        total = okapi + zoo + unheard
        assert [one.contributions.words for one in found] == pytest.approx(
            [okapi / total, zoo / total, zoo / total]
        )

    def test_a_word_of_very_many_images_counts_for_nothing(self):
        names = [f"i{n:03}" for n in range(101)]  # one more than 100
        backend = self.build(
            [document(one, said("sky")) for one in names], dict.fromkeys(names, X), ()
        )
        [found] = backend.search(EncodedQuery(calibrated(), X, words=("sky",)), Filters(), 1)
        assert found.contributions.words == 0

    def test_phrases_must_occur_word_after_word_in_one_text(self):
        backend = self.build(
            [document("a", said("a red car")), document("b", said("red and a car")),
             document("c", said("it is red"), said("car park")), document("d")],
            {"a": Y, "b": X, "c": X, "d": X}, (),
        )  # fmt: skip

        def having(*phrases: str, **filters: object) -> list[str]:
            parts = tuple(tuple(phrase.split()) for phrase in phrases)
            query = EncodedQuery(CM, X, phrases=parts)
            return ids(backend.search(query, Filters(**filters), 5))

        assert having("red car") == ["a"]
        assert having("red", "car") == ["b", "c", "a"]
        assert having("red", "bus") == having("red car", tags=("none",)) == []

    def test_phrases_alone_are_a_query(self):
        backend = self.build(
            [document("b", said("red")), document("a", said("red"))], {"a": X, "b": X}, ()
        )
        assert ids(backend.search(EncodedQuery(CM, ZERO, phrases=(("red",),)), Filters(), 5)) == [
            "a",
            "b",
        ]

    def test_the_vector_of_an_image_can_be_read(self):
        backend = self.images(a=X, b=DIAGONAL)
        assert backend.vector("b") == pytest.approx(DIAGONAL, abs=self.tolerance)
        assert backend.vector("unknown") is None

    def test_it_knows_whether_anything_is_captioned(self):
        assert self.captioned([("a", said("cat"), X)], a=X).stats().captioned
        assert not self.build([document("a", said("cat"))], {"a": X}, ()).stats().captioned

    def test_an_empty_backend_finds_nothing(self):
        backend = self.images()
        assert (len(backend), backend.search(EncodedQuery(CM, X), Filters(), 5)) == (0, ())
        assert (backend.vector("a"), backend.stats().captioned) == (None, False)

    def test_the_query_is_not_changed(self):
        query = np.array([3, 4, 0], np.float32)
        self.images(a=X).search(EncodedQuery(CM, query), Filters(), 1)
        assert query.tolist() == [3, 4, 0]
