"""The search: what a query means, what it may not be, and that pages fit together."""

from __future__ import annotations

from math import sqrt

import pytest
from toy_engine import CAPTIONS, FLOOR, WEIGHT, build, found

from capsearch.engine.errors import InvalidQuery, UnknownLanguage
from capsearch.engine.fakes import FakeTextEncoder, colour_image
from capsearch.engine.query import MAX_CHARACTERS, Query
from capsearch.engine.records import Filters


@pytest.mark.parametrize("text", ["red", "红色", "赤い"])
def test_each_language_finds_the_image_by_what_it_shows(text: str):
    assert build().search(Query(text, mode="cm")).hits[0].image_id == "red"


def test_cm_scores_are_cosines_with_the_image():
    result = build().search(Query("red", mode="cm"))
    assert found(result) == pytest.approx(
        {"red": 1, "red-blue": 1 / sqrt(2), "blue": 0, "white": 0}
    )
    assert (result.mode, result.weight, result.language) == ("cm", None, "en")


def test_cl_scores_the_best_caption_whatever_its_language():
    result = build().search(Query("red cat", mode="cl"))
    # "a red car" shares red (1/2); 一只红色的猫 says both (1); "a dog" neither.
    assert found(result) == pytest.approx({"white": 1, "red": 1 / 2})
    assert result.hits[0].contributions.caption == CAPTIONS[1][1]
    assert result.hits[0].contributions.cm is None


def test_clm_adds_both_sides_and_uncaptioned_images_score_the_floor():
    result = build().search(Query("red"))
    assert found(result) == pytest.approx(
        {
            "red": WEIGHT / sqrt(2) + (1 - WEIGHT) * 1,
            "red-blue": WEIGHT * FLOOR + (1 - WEIGHT) / sqrt(2),
            "white": WEIGHT / sqrt(2) + (1 - WEIGHT) * 0,
            "blue": WEIGHT * FLOOR,
        }
    )
    assert (result.mode, result.weight) == ("clm", WEIGHT)


def test_every_hit_says_why_it_is_there():
    red, red_blue, *_ = build().search(Query("red")).hits
    assert red.contributions.cm == pytest.approx(1)
    assert red.contributions.cl == pytest.approx(1 / sqrt(2))
    assert red.contributions.caption == CAPTIONS[0][1]
    assert red_blue.contributions.cl is None and red_blue.contributions.caption is None


def test_a_query_may_choose_its_own_weight():
    result = build().search(Query("red", weight=1.0))
    assert result.weight == 1.0
    assert found(result)["red"] == pytest.approx(1 / sqrt(2))


def test_a_stated_language_overrides_the_script():
    result = build().search(Query("猫", language="ja", mode="cl"))
    assert (result.language, result.hits[0].image_id) == ("ja", "white")
    assert build().search(Query("猫")).language == "zh"


def test_words_nobody_knows_find_nothing_with_a_warning():
    result = build().search(Query("zyzzyva"))
    assert (result.hits, result.more) == ((), False)
    assert result.warnings == ("the en model knows nothing in 'zyzzyva'; only words are found",)
    assert build().search(Query("red zyzzyva")).warnings == ()


def test_a_image_from_outside_finds_its_likes():
    result = build().search(Query(image=colour_image("red", "blue")))
    assert (result.mode, result.language, result.weight) == ("cm", None, None)
    assert [hit.image_id for hit in result.hits] == ["red-blue", "blue", "red", "white"]


def test_a_image_of_the_index_finds_itself_first():
    result = build().search(Query(like="blue"))
    assert [hit.image_id for hit in result.hits[:2]] == ["blue", "red-blue"]
    assert result.hits[0].score == pytest.approx(1)


def test_words_and_a_image_meet_in_the_middle():
    result = build().search(Query("red", like="blue", mode="cm"))
    # The query is (red + blue) / |red + blue|: exactly what red-blue shows.
    assert found(result)["red-blue"] == pytest.approx(1)
    assert found(result)["red"] == found(result)["blue"] == pytest.approx(1 / sqrt(2))


@pytest.mark.parametrize(("share", "first"), [(0.0, "red"), (1.0, "blue")])
def test_the_image_weight_moves_between_words_and_image(share: float, first: str):
    query = Query("red", like="blue", image_weight=share, mode="cm")
    assert build().search(query).hits[0].image_id == first


def test_words_that_cancel_the_image_are_survived():
    # "zyzzyva" is a zero vector; with all the weight on it the sum has no direction.
    query = Query("zyzzyva", like="blue", image_weight=0.0, mode="cm")
    assert build().search(query).hits == ()


def test_an_image_with_all_the_weight_leaves_nothing_to_the_captions():
    result = build().search(Query("red", like="blue", image_weight=1.0))
    assert (result.mode, result.weight) == ("clm", 0.0)
    assert found(result) == pytest.approx(
        {"blue": 1, "red-blue": 1 / sqrt(2), "red": 0, "white": 0}
    )
    assert result.hits[0].contributions.cl is None


def test_beside_an_image_captions_weigh_what_the_text_does():
    result = build().search(Query("red", like="blue", image_weight=0.25))
    assert result.weight == pytest.approx(0.75 * WEIGHT)


class TestHubnessPenalty:
    """Red images and captions pay a half, those that are partly red their part of it."""

    engine = build(penalty=0.5)

    def test_text_finds_images_by_cosine_less_the_penalty(self):
        assert found(self.engine.search(Query("red", mode="cm"))) == pytest.approx(
            {"red": 1 - 0.5, "red-blue": 0.5 / sqrt(2), "blue": 0, "white": 0}
        )

    def test_and_captions_too(self):
        # "a red car" and 一只红色的猫 are half about red: each pays .5 / sqrt(2).
        result = self.engine.search(Query("red cat", mode="cl"))
        paid = 0.5 / sqrt(2)
        assert found(result) == pytest.approx({"white": 1 - paid, "red": 1 / 2 - paid})

    @pytest.mark.parametrize("query", [Query(like="red"), Query(image=colour_image("red"))])
    def test_likeness_is_free(self, query):
        result = self.engine.search(query)
        assert found(result) == pytest.approx(
            {"red": 1, "red-blue": 1 / sqrt(2), "blue": 0, "white": 0}
        )

    def test_words_with_a_image_let_pay_for_the_words(self):
        result = self.engine.search(Query("red", like="blue", mode="cm"))
        # (red + blue) / sqrt(2) is the question, and half of it, sqrt(2) / 2, asks for penalties.
        assert found(result)["red"] == pytest.approx((1 - 0.5) / sqrt(2))
        assert found(result)["blue"] == pytest.approx(1 / sqrt(2))


def test_filters_restrict_what_is_found():
    result = build().search(Query("red", filters=Filters(written_by="models")))
    assert [hit.image_id for hit in result.hits] == ["white"]


def test_a_filter_that_nothing_passes_finds_nothing():
    result = build().search(Query("red", filters=Filters(tags=("nowhere",))))
    assert (result.hits, result.more) == ((), False)


def test_a_minimum_score_cuts_the_tail():
    result = build().search(Query("red", mode="cm", min_score=0.5))
    assert [hit.image_id for hit in result.hits] == ["red", "red-blue"]
    assert not result.more


def test_an_empty_index_finds_nothing():
    result = build({}, ()).search(Query("red"))
    assert (result.hits, result.more) == ((), False)


@pytest.mark.parametrize("mode", ["clm", "cm", "cl"])
def test_pages_never_repeat_or_drop_a_hit(mode: str):
    # 90 images with few distinct scores; every third has a caption.
    colours = [("red",), ("blue",), ("red", "blue"), ("white",)]
    images = {f"p{n:02}": colours[n * 7 % 4] for n in range(90)}
    captions = tuple((name, CAPTIONS[0][1]) for name in sorted(images)[::3])
    engine = build(images, captions)
    whole = engine.search(Query("red cat", mode=mode, limit=1000))
    pages = [
        engine.search(Query("red cat", mode=mode, limit=7, offset=at))
        for at in range(0, len(whole.hits), 7)
    ]
    assert tuple(hit for page in pages for hit in page.hits) == whole.hits
    assert [page.more for page in pages] == [True] * (len(pages) - 1) + [False]
    assert [hit.rank for hit in whole.hits] == list(range(1, len(whole.hits) + 1))


def test_a_page_beyond_the_end_is_empty():
    result = build().search(Query("red", offset=100))
    assert (result.hits, result.more) == ((), False)


def test_equal_scores_come_in_the_order_of_their_ids():
    engine = build({"c": ("red",), "a": ("red",), "b": ("red",)}, ())
    assert [hit.image_id for hit in engine.search(Query("red")).hits] == ["a", "b", "c"]


def test_timings_name_the_two_halves():
    assert set(build().search(Query("red")).timings_ms) == {"encode", "search"}


@pytest.mark.parametrize(
    ("query", "message"),
    [(Query(), "nothing to search for"), (Query(like="nobody"), "no image with id 'nobody'")],
)
def test_a_query_that_cannot_be_answered_says_why(query: Query, message: str):
    with pytest.raises(InvalidQuery, match=message):
        build().search(query)


def test_a_language_no_model_reads_names_those_that_are_read():
    with pytest.raises(UnknownLanguage, match="no model reads 'fr'; choose one of en, zh, ja"):
        build().search(Query("rouge", language="fr"))


def test_without_any_caption_clm_is_cm_with_its_scores():
    captionless = build(captions=())
    fused, plain = (captionless.search(Query("red", mode=mode)) for mode in ("clm", "cm"))
    assert fused == plain
    assert fused.weight is None


def test_cl_without_any_caption_says_so():
    result = build(captions=()).search(Query("red", mode="cl"))
    assert result.hits == ()
    assert "no image here has a caption" in result.warnings[0]


def test_of_a_pasted_book_the_start_is_read_and_that_is_said(monkeypatch):
    asked, understand = [], FakeTextEncoder.understand

    def recorded(encoder, text, language=None):
        asked.append(text)
        return understand(encoder, text, language)

    monkeypatch.setattr(FakeTextEncoder, "understand", recorded)
    result = build().search(Query("red " * 250_000))
    assert [len(text) for text in asked] == [MAX_CHARACTERS - 1]  # no space at the end
    assert "only the first 2,000 characters of the text were read" in result.warnings


def test_many_phrases_are_refused():
    with pytest.raises(InvalidQuery, match="at most 32 quoted parts, not 500"):
        build().search(Query('"a" ' * 20_000))


def test_a_least_score_that_is_no_number_is_refused():
    with pytest.raises(InvalidQuery, match="not nan"):
        build().search(Query("red", min_score=float("nan")))
