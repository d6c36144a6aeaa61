"""Evidence into scores: the arithmetic, and that no document exceeds its bound."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.engine.evidence import (
    SOURCES,
    CalibratedEvidence,
    ConvexCombination,
    Evidence,
    EvidenceModel,
    KindWeights,
    LengthDependent,
    SingleSource,
    contributions,
    is_rare,
    without,
    word_weight,
)
from capsearch.engine.records import Caption

NONE = float("nan")


def evidence(image=NONE, caption=NONE, generated=NONE, words=0.0, **more) -> Evidence:
    """Of one document."""
    values = {"image": image, "caption": caption, "generated": generated, "words": words, **more}
    return Evidence.of(1, **{name: np.array([one]) for name, one in values.items()})


def score(fusion, **scores: float) -> float:
    return float(fusion.scores(evidence(**scores))[0])


class TestSingleSource:
    def test_the_score_is_that_of_the_source(self):
        assert score(SingleSource("image"), image=0.3, caption=0.9) == 0.3
        assert score(SingleSource("caption"), image=0.3, caption=0.9) == 0.9

    def test_captions_are_the_better_of_peoples_and_models(self):
        assert score(SingleSource("caption"), caption=0.2, generated=0.5) == 0.5
        assert score(SingleSource("caption"), generated=-0.5) == -0.5

    def test_a_document_without_the_source_is_no_hit(self):
        assert score(SingleSource("caption"), image=1.0) == -np.inf

    def test_scores_are_shown_as_they_are_and_have_no_parts(self):
        fusion = SingleSource("image")
        assert fusion.unit == "score" and fusion.shown(np.array([0.4])) == [0.4]
        assert fusion.log_odds(evidence(image=0.4)) == {}


class TestConvexCombination:
    def test_it_is_the_weighted_sum_of_both_sides(self):
        fusion = ConvexCombination(0.25, floor=0.0)
        assert score(fusion, image=0.4, caption=0.9) == 0.25 * 0.9 + 0.75 * 0.4
        assert score(fusion, image=0.4, generated=0.9) == 0.25 * 0.9 + 0.75 * 0.4

    def test_a_document_without_captions_scores_the_floor_on_the_caption_side(self):
        assert score(ConvexCombination(0.5, floor=0.1), image=0.4) == 0.5 * 0.1 + 0.5 * 0.4

    def test_a_document_without_a_vector_scores_zero_on_the_image_side(self):
        assert score(ConvexCombination(0.5, floor=0.1), caption=0.4) == 0.5 * 0.4

    def test_the_weight_decides_which_side_leads(self):
        said, seen = {"caption": 1.0, "image": 0.0}, {"caption": 0.0, "image": 1.0}
        for weight, leads in [(0.6, True), (0.4, False)]:
            fusion = ConvexCombination(weight, floor=0.0)
            assert (score(fusion, **said) > score(fusion, **seen)) == leads

    @pytest.mark.parametrize("weight", [-0.01, 1.01])
    def test_a_weight_outside_zero_to_one_is_refused(self, weight: float):
        with pytest.raises(ValueError, match=r"weight must lie in \[0, 1\]"):
            ConvexCombination(weight, floor=0.0)

    def test_a_side_without_weight_is_no_source(self):
        assert ConvexCombination(0.0, 0.1).sources == {"image"}
        assert ConvexCombination(1.0, 0.1).sources == {"caption", "generated"}
        assert ConvexCombination(0.5, 0.1).sources == {"image", "caption", "generated"}


MODEL = EvidenceModel(
    kinds={
        "": KindWeights(-1.0, {"image": 8.0, "words": 2.0}, {"image": -4.0}),
        "caption": KindWeights(-2.0, {"image": 5.0, "caption": 10.0}, {"image": -3.0}),
    },
    size=1000,
    size_exponent=0.5,
    cutoff=0.2,
)
BACKGROUND = {"image": 0.25, "caption": 0.5}


class TestCalibratedEvidence:
    fusion = CalibratedEvidence(MODEL, BACKGROUND, documents=1000)

    def test_each_kind_of_document_has_its_own_log_odds(self):
        assert score(self.fusion, image=0.5) == pytest.approx(-1 + 8 * 0.5 - 4 * 0.25)
        both = score(self.fusion, image=0.5, caption=0.75)
        assert both == pytest.approx(-2 + 5 * 0.5 + 10 * 0.75 - 3 * 0.25)

    def test_parts_add_up_to_the_score_and_the_prior_holds_what_is_no_source(self):
        parts = self.fusion.log_odds(evidence(image=0.5, words=1.0))
        assert parts["image"] == 4 and parts["words"] == 2
        assert parts["prior"] == pytest.approx(-1 - 4 * 0.25)
        assert sum(one[0] for one in parts.values()) == score(self.fusion, image=0.5, words=1.0)

    def test_a_larger_collection_shifts_the_prior(self):
        larger = replace(self.fusion, documents=100_000)
        shift = score(larger, image=0.5) - score(self.fusion, image=0.5)
        assert shift == pytest.approx(-0.5 * log(100))

    def test_scores_are_shown_as_probabilities(self):
        assert self.fusion.unit == "probability"
        assert self.fusion.shown(np.array([0.0, 1.0])) == pytest.approx([1 / 2, 1 / (1 + exp(-1))])
        assert self.fusion.shown(np.array([-1e9, 1e9])) == pytest.approx([0, 1])

    def test_a_kind_that_was_not_fitted_falls_back_on_a_simpler_one(self):
        assert MODEL.kind(True, True) == ("caption", MODEL.kinds["caption"])
        assert MODEL.kind(False, True) == ("", MODEL.kinds[""])
        assert score(self.fusion, image=0.5, generated=0.9) == score(self.fusion, image=0.5)
        with pytest.raises(ValueError, match="at least the kind ''"):
            replace(MODEL, kinds={}).kind(False, False)

    def test_an_image_that_is_not_encoded_scores_as_the_background(self):
        assert score(self.fusion) == score(self.fusion, image=0.25)

    def test_negative_weights_are_refused(self):
        with pytest.raises(ValueError, match=r"must not be negative: \{'image'"):
            KindWeights(0.0, {"image": -1.0}, {})

    def test_without_a_source_its_kinds_and_weights_are_gone(self):
        images = without(MODEL, "caption", "generated", "words")
        assert images.kinds == {"": KindWeights(-1.0, {"image": 8.0}, {"image": -4.0})}
        assert CalibratedEvidence(images, BACKGROUND, 1000).sources == {"image"}
        assert self.fusion.sources == {"image", "caption", "words"}


@pytest.mark.parametrize(("words", "share"), [(0, 0), (2, 0), (3, 1 / 4), (6, 1), (20, 1)])
def test_between_short_queries_and_sentences_weights_are_interpolated(words, share):
    short, long = (
        EvidenceModel({"": KindWeights(value, {"image": 2 * value}, {"image": 3 * value})}, 9, 1, 0)
        for value in (1.0, 5.0)
    )
    kind = LengthDependent(short, long).at(words).kinds[""]
    value = (1 - share) * 1 + share * 5
    assert (kind.intercept, kind.weights, kind.background) == (
        pytest.approx(value),
        pytest.approx({"image": 2 * value}),
        pytest.approx({"image": 3 * value}),
    )


def test_names_with_unknown_words_have_weights_of_their_own():
    short, long, unfamiliar = (
        EvidenceModel({"": KindWeights(value, {"image": value}, {})}, 9, 1, 0)
        for value in (1.0, 5.0, 3.0)
    )
    fitted = LengthDependent(short, long, unfamiliar)
    assert fitted.at(1, unfamiliar=True).kinds[""].intercept == 3.0
    assert fitted.at(1).kinds[""].intercept == 1.0
    assert fitted.at(20, unfamiliar=True).kinds[""].intercept == 5.0
    assert LengthDependent(short, long).at(1, unfamiliar=True).kinds[""].intercept == 1.0


def test_rare_names_have_weights_and_a_cut_off_of_their_own_also_with_more_words():
    short, long, rare = (
        EvidenceModel({"": KindWeights(value, {"image": 1.0}, {})}, 9, 1, value / 10)
        for value in (8.0, 1.0, 3.0)
    )
    fitted = LengthDependent(short, long, rare=rare)
    assert [fitted.at(words).cutoff for words in (1, 9)] == pytest.approx([0.8, 0.1])
    found = [fitted.at(words, rare=True) for words in (1, 4, 9)]
    assert [one.cutoff for one in found] == pytest.approx([0.3, 0.2, 0.1])
    assert [one.kinds[""].intercept for one in found] == pytest.approx([3.0, 2.0, 1.0])


def test_a_best_hit_that_a_model_has_described_has_a_cut_off_of_its_own():
    kinds = {"": KindWeights(0.0, {"image": 1.0}, {})}
    model = EvidenceModel(kinds, 9, 1, 0.5, 0.2, described_cutoff=0.8)
    assert [model.best_cutoff(one) for one in (False, True)] == [0.5, 0.8]
    assert EvidenceModel(kinds, 9, 1, 0.5).best_cutoff(described=True) == 0.5
    assert without(model, "caption", "generated").best_cutoff(described=True) == 0.5
    assert LengthDependent(model, model).at(4).best_cutoff(described=True) == pytest.approx(0.8)


def test_a_kind_that_short_queries_lack_starts_from_the_simpler_one():
    image = KindWeights(1.0, {"image": 2.0}, {})
    both = KindWeights(5.0, {"image": 4.0, "generated": 8.0}, {})
    fitted = LengthDependent(
        EvidenceModel({"": image}, 9, 1, 0), EvidenceModel({"": image, "generated": both}, 9, 1, 0)
    )
    assert fitted.at(1).kinds["generated"] == KindWeights(1.0, {"image": 2.0, "generated": 0.0}, {})
    assert fitted.at(20).kinds["generated"] == both


SCORE = st.sampled_from([-1.0, -0.1, 0.0, 0.25, 1.0]) | st.floats(-1, 1)
MAYBE = SCORE | st.just(NONE)
WEIGHT = st.floats(0, 20)


@st.composite
def models(draw) -> EvidenceModel:
    names = [("",), ("", "caption"), ("", "generated"), ("", "caption", "caption+generated")]
    kinds = {
        name: KindWeights(
            draw(st.floats(-9, 9)),
            {one: draw(WEIGHT) for one in {"image", *SOURCES[3:], *filter(None, name.split("+"))}},
            {"image": draw(st.floats(-9, 9))},
        )
        for name in draw(st.sampled_from(names))
    }
    return EvidenceModel(kinds, 1000, draw(st.floats(0, 1)), 0.0)


FUSIONS = (
    st.sampled_from([SingleSource("image"), SingleSource("caption")])
    | st.builds(ConvexCombination, st.floats(0, 1), st.floats(-0.5, 0.5))
    | st.builds(CalibratedEvidence, models(), st.just(BACKGROUND), st.integers(0, 10**6))
)


@given(FUSIONS, st.fixed_dictionaries(dict.fromkeys(SOURCES[:3], MAYBE)), st.data())
def test_no_document_exceeds_the_bound_of_what_it_does_not_exceed(fusion, highest, data):
    highest |= {one: data.draw(st.floats(0, 1)) for one in SOURCES[3:]}

    def at_most(source: str) -> float:
        most = highest[source]
        return NONE if np.isnan(most) else most - data.draw(st.floats(0, 1))

    for missing in [(), ("caption",), ("generated",), ("caption", "generated")]:
        scores = {one: NONE if one in missing else at_most(one) for one in SOURCES}
        assert score(fusion, **scores) <= fusion.bounds(Evidence.single(highest))[0] + 1e-9


def test_where_no_document_has_the_source_nothing_is_bound_to_be_found():
    nothing = Evidence.single(dict.fromkeys(SOURCES, NONE))
    assert SingleSource("caption").bounds(nothing)[0] == -np.inf
    assert ConvexCombination(1.0, 0.1).bounds(nothing)[0] == pytest.approx(0.1)  # the floor


@given(st.lists(st.tuples(SCORE, SCORE), min_size=2, max_size=30), WEIGHT, WEIGHT)
def test_within_one_kind_of_document_the_order_is_that_of_the_convex_combination(pairs, cm, cl):
    model = EvidenceModel(
        {"": KindWeights(0, {}, {}), "caption": KindWeights(-3, {"image": cm, "caption": cl}, {})},
        1000, 1.0, 0.0,
    )  # fmt: skip
    images, captions = (np.array(side, float) for side in zip(*pairs, strict=True))
    found = Evidence.of(len(pairs), image=images, caption=captions)
    log_odds = CalibratedEvidence(model, {}, 1000).scores(found)
    total = cm + cl
    if total:
        convex = ConvexCombination(cl / total, floor=0.0).scores(found)
        assert log_odds == pytest.approx(-3 + total * convex, abs=1e-9)


@given(MAYBE.filter(lambda one: one == one), st.floats(-1, 1), st.floats(-1, 1))
def test_a_missing_caption_never_counts_as_a_floor(image, one, other):
    """Whatever unrelated captions score, a document without any has the same log-odds."""
    fusions = [
        CalibratedEvidence(MODEL, {"image": 0.25, "caption": floor}, 1000) for floor in (one, other)
    ]
    assert score(fusions[0], image=image) == score(fusions[1], image=image)
    assert fusions[0].log_odds(evidence(image=image))["caption"] == 0


class TestEvidence:
    def test_what_is_not_given_is_missing_and_words_are_not_found(self):
        some = Evidence.of(2, image=np.array([1, 2]))
        assert len(some) == 2 and some.image.tolist() == [1, 2]
        assert np.isnan(some.caption).all() and some.words.tolist() == [0, 0]

    def test_some_of_the_documents(self):
        assert Evidence.of(3, image=np.arange(3)).at(np.array([2, 0])).image.tolist() == [2, 0]

    def test_contributions_show_the_sources_that_were_used(self):
        caption = Caption("a cat", "en", "sidecar")
        given = evidence(image=0.5, caption=0.2, generated=0.4, words=1.0)
        parts = {"image": np.array([3.0]), "words": np.array([0.0])}
        shown = contributions(given, parts, 0, frozenset({"image", "caption"}), caption)
        assert (shown.cm, shown.cl, shown.words, shown.caption) == (0.5, 0.4, None, caption)
        assert shown.log_odds == {"image": 3.0}
        only_image = contributions(given, {}, 0, frozenset({"image"}), caption)
        assert (only_image.cl, only_image.caption) == (None, None)

    def test_rare_words_weigh_more(self):
        assert word_weight(1000, 0) == pytest.approx(log(1 + 1000))
        assert word_weight(1000, 9) == pytest.approx(log(1 + 1000 / 10))

    def test_a_word_is_rare_in_up_to_100_documents_or_a_fiftieth_of_them(self):
        assert [is_rare(1000, count) for count in (0, 1, 100, 101)] == [False, True, True, False]
        assert is_rare(50_000, 1000) and not is_rare(50_000, 1001)
        assert is_rare(10**6, 2000) and not is_rare(10**6, 2001)
