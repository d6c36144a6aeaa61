"""Searches with calibrated evidence: probabilities, the cut-off, words and quoted phrases."""

from __future__ import annotations

from dataclasses import replace
from math import exp, sqrt

import pytest
from toy_engine import build, found

from capsearch.engine.evidence import EvidenceModel, KindWeights, word_weight
from capsearch.engine.query import Query
from capsearch.engine.records import GENERATED, Caption


class TestQuoted:
    def test_quoted_words_must_occur(self):
        assert [hit.image_id for hit in build().search(Query('"dog" red')).hits] == ["white"]
        assert build().search(Query('"red dog"')).hits == ()

    def test_what_folds_to_nothing_is_not_asked_for(self):
        assert len(build().search(Query('red "!"')).hits) == 4


class TestProbabilities:
    """Log-odds 4 CM - 1 for bare images, 4 CM + 6 CL - 3 with captions; words add 2."""

    evidence = EvidenceModel(
        kinds={
            "": KindWeights(-1.0, {"image": 4.0, "words": 2.0}, {}),
            "caption": KindWeights(-3.0, {"image": 4.0, "caption": 6.0, "words": 2.0}, {}),
        },
        size=4,  # as many as there are images
        size_exponent=1.0,
        cutoff=0.5,
        tail_cutoff=0.5,
    )
    engine = build(evidence=evidence)

    def log_odds(self, result) -> dict[str, float]:
        return {hit.image_id: sum(hit.contributions.log_odds.values()) for hit in result.hits}

    def test_a_hit_scores_its_probability_of_relevance(self):
        result = self.engine.search(Query("red cat", min_score=0.0))
        # "red" is in two of four texts and file names, "cat" in none: 红色的猫 has no such word.
        words = word_weight(4, 2) / (word_weight(4, 2) + word_weight(4, 0))
        expected = {
            "white": 6 * 1 - 3,
            "red": 4 * 1 + 6 / 2 - 3 + 2 * words,
            "red-blue": 4 / sqrt(2) - 1 + 2 * words,
            "blue": -1,
        }
        assert self.log_odds(result) == pytest.approx(expected)
        assert found(result) == pytest.approx({k: 1 / (1 + exp(-v)) for k, v in expected.items()})
        assert (result.unit, result.min_score, result.weight) == ("probability", 0.0, None)

    def test_a_request_is_searched_by_what_it_asks_for(self):
        # The toy encoder takes "show me" away, which would else be words that no image has.
        asked = self.engine.search(Query("show me red cat", min_score=0.0))
        assert found(asked) == found(self.engine.search(Query("red cat", min_score=0.0)))

    def test_the_calibrated_cut_off_is_the_default(self):
        result = self.engine.search(Query("red cat"))
        assert result.min_score == 0.5
        assert "blue" not in found(result) and min(found(result).values()) >= 0.5

    def test_behind_a_hit_that_matches_less_probable_ones_are_shown(self):
        lenient = replace(self.evidence, tail_cutoff=0.01)
        shown = found(build(evidence=lenient).search(Query("red cat")))
        assert max(shown.values()) >= 0.5 > min(shown.values()) >= 0.01

    def test_where_the_best_hit_does_not_match_nothing_is_shown_on_any_page(self):
        lenient = replace(self.evidence, cutoff=0.999, tail_cutoff=0.01)
        engine = build(evidence=lenient)
        assert engine.search(Query("red cat")).hits == ()
        assert engine.search(Query("red cat", offset=1)).hits == ()

    def test_a_best_hit_that_a_model_described_needs_to_be_surer(self):
        strict = replace(self.evidence, tail_cutoff=0.01, described_cutoff=0.999)
        by_person = (("red", Caption("a red cat", "en", "sidecar")),)
        by_model = (("red", Caption("a red cat", "en", GENERATED + "toy@1")),)
        assert build(captions=by_person, evidence=strict).search(Query("red cat")).hits
        engine = build(captions=by_model, evidence=strict)
        for offset in (0, 1):
            result = engine.search(Query("red cat", offset=offset))
            assert (result.hits, result.min_score) == ((), 0.999)
        assert engine.search(Query("red cat", min_score=0.0)).hits

    def test_nothing_matches_nothing(self):
        assert self.engine.search(Query("purple bread")).hits == ()

    def test_words_nobody_knows_are_found_as_words(self):
        engine = build(
            captions=(("blue", Caption("Zyzzyva", "en", "sidecar")),), evidence=self.evidence
        )
        result = engine.search(Query("zyzzyva", min_score=0.0))
        assert [hit.contributions.words for hit in result.hits] == [1.0, 0.0, 0.0, 0.0]
        assert result.hits[0].contributions.log_odds == {"words": 2.0, "prior": -3.0}

    def test_words_count_where_nothing_is_captioned(self):
        result = build(captions=(), evidence=self.evidence).search(Query("red", min_score=0.0))
        assert result.mode == "clm"
        # "red" is in the file names of two images.
        assert result.hits[0].contributions.log_odds["words"] == pytest.approx(2.0)
        assert result.hits[0].contributions.cl is None

    def test_cm_is_calibrated_on_images_alone(self):
        result = self.engine.search(Query("red", mode="cm", min_score=0.0))
        assert self.log_odds(result)["red"] == pytest.approx(4 - 1)
        assert result.hits[0].contributions.cl is None and result.unit == "probability"

    @pytest.mark.parametrize(
        "query", [Query("red", weight=0.4), Query("red", mode="cl"), Query("red", like="blue")]
    )
    def test_what_was_not_calibrated_scores_as_before(self, query):
        result = self.engine.search(query)
        assert (result.unit, result.min_score) == ("score", None)

    def test_certainty_is_asked_in_vain(self):
        assert self.engine.search(Query("red", min_score=1.0)).hits == ()
