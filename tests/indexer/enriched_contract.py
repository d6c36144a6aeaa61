"""What a Backend does with what models wrote: generated words and tags as evidence of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from backend_contract import X, Y, document, generated, ids, said

from capsearch.engine.evidence import CalibratedEvidence, EvidenceModel, KindWeights
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Document, Filters, Tag

# Log-odds: 2 CM, 5 of people's words, 1 of models' words, 3 of tags.
WEIGHTS = {"image": 2.0, "words": 5.0, "generated_words": 1.0, "tag": 3.0}
CALIBRATED = CalibratedEvidence(
    EvidenceModel({"": KindWeights(-1.0, WEIGHTS, {})}, size=1, size_exponent=0.0, cutoff=0.0),
    {},
    documents=1,
)
CAT, SOFA = frozenset({"cat", "siamese"}), frozenset({"couch"})


def tagged(image_id: str, **tags: float) -> Document:
    plain = document(image_id)
    found = [Tag(one, "en", value, "model:m", one) for one, value in tags.items()]
    return Document(
        plain.record, plain.captions, tuple(sorted(found, key=lambda one: -one.confidence))
    )


class EnrichedContract:
    """Inherit and implement `build`, as for BackendContract."""

    def test_words_of_models_count_apart_from_words_of_people(self):
        backend = self.build(
            [document("a", said("an okapi")), document("b", generated("an okapi")), document("c")],
            dict.fromkeys("abc", X),
            (),
        )
        found = backend.search(EncodedQuery(CALIBRATED, X, words=("okapi",)), Filters(), 5)
        assert [one.score for one in found] == pytest.approx([2 - 1 + 5, 2 - 1 + 1, 2 - 1])
        assert ids(found) == ["a", "b", "c"]
        assert found[1].contributions.log_odds["generated_words"] == pytest.approx(1)
        assert found[1].contributions.words == 0

    def test_tags_count_by_their_probability(self):
        backend = self.build(
            [tagged("a", cat=0.4), tagged("b", siamese=0.9, cat=0.2), tagged("c", dog=1.0)],
            dict.fromkeys("abc", Y),
            (),
        )
        found = backend.search(EncodedQuery(CALIBRATED, X, concepts=(CAT,)), Filters(), 5)
        assert ids(found) == ["b", "a", "c"]
        assert [one.contributions.tag for one in found] == pytest.approx([0.9, 0.4, 0])
        assert [one.score for one in found] == pytest.approx([3 * 0.9 - 1, 3 * 0.4 - 1, -1])

    def test_of_several_things_named_each_counts_its_share(self):
        backend = self.build(
            [tagged("a", cat=0.8, couch=0.6), tagged("b", cat=0.9)], dict.fromkeys("ab", X), ()
        )
        found = backend.search(EncodedQuery(CALIBRATED, X, concepts=(CAT, SOFA)), Filters(), 5)
        assert [one.contributions.tag for one in found] == pytest.approx([0.7, 0.45])

    def test_a_tag_makes_a_candidate_however_far_its_image(self):
        names = [f"i{n:03}" for n in range(60)]
        backend = self.build(
            [*(document(one) for one in names), tagged("z", cat=1.0)],
            {**dict.fromkeys(names, np.array([0.5, 0, 0], np.float32)), "z": Y},
            (),
        )
        found = backend.search(EncodedQuery(CALIBRATED, X, concepts=(CAT,)), Filters(), 3)
        assert ids(found)[0] == "z"

    def test_quoted_words_may_be_a_models(self):
        backend = self.build(
            [document("a", generated("a red car")), document("b", said("car"), generated("red")),
             document("c", said("red bus"))],
            dict.fromkeys("abc", X), (),
        )  # fmt: skip

        def having(*phrases: str) -> list[str]:
            parts = tuple(tuple(phrase.split()) for phrase in phrases)
            return ids(backend.search(EncodedQuery(CALIBRATED, X, phrases=parts), Filters(), 5))

        assert having("red car") == ["a"]
        assert having("red", "car") == ["a", "b"]

    def test_probabilities_of_captions_come_back(self):
        plain = document("a")
        sure = Document(plain.record, (replace(generated("a cat"), confidence=0.75),))
        assert self.build([sure], {"a": X}, ()).lookup(["a"]) == {"a": sure}
