"""`capsearch query` with a calibrated model: probabilities, their evidence and the cut-off."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any

import pytest

from capsearch.encoders.models.registry import Model
from capsearch.engine.records import SearchResult, Unit
from capsearch.ui.cli.hits import no_hits
from capsearch.ui.values import score_text

Run = Callable[..., Any]
PLAIN_HEADINGS = ["rank", "score", "CM", "CL", "path", "caption"]


def probability(log_odds: float) -> float:
    return 1 / (1 + exp(-log_odds))


@pytest.fixture(autouse=True)
def _calibrated(indexed: Path, calibrated: Model) -> None:
    """Indexed as always, searched with a calibrated model of the same vectors."""


def test_the_table_shows_percent_and_what_each_kind_of_evidence_adds(
    indexed: Path, run: Run
) -> None:
    heading, *rows = run("query", "red car").out.splitlines()
    assert heading.split() == [
        "rank", "score", "image", "captions", "words", "prior", "path", "caption",
    ]  # fmt: skip
    assert [row.split()[:6] for row in rows] == [["1", "99%", "+6.0", "+3.0", "+1.0", "-5.0"]]
    assert str(indexed / "red.png") in rows[0]


def test_json_has_unit_cut_off_words_and_log_odds_that_add_up_to_the_score(run: Run) -> None:
    answer = run("query", "red car", "--json").json
    assert answer["query"]["unit"] == "probability"
    assert answer["query"]["min_score"] == 0.5
    assert answer["query"]["weight"] is None
    [hit] = answer["hits"]
    assert hit["log_odds"] == pytest.approx(
        {"image": 6 * 1, "caption": 3 * 1, "words": 1 * 1, "prior": -5}, rel=1e-3
    )  # caption vectors are float16
    assert hit["score"] == pytest.approx(probability(sum(hit["log_odds"].values())))
    assert (hit["cm"], hit["cl"], hit["words"]) == pytest.approx((1, 1, 1), rel=1e-3)


def test_a_minimum_score_of_0_shows_everything_and_missing_evidence_is_a_dash(run: Run) -> None:
    answer = run("query", "red car", "--min-score", "0", "--json").json
    assert answer["query"]["min_score"] == 0
    assert [hit["score"] for hit in answer["hits"][1:]] == pytest.approx([probability(-4)] * 3)
    _, _, second, *_ = run("query", "red car", "--min-score", "0").out.splitlines()
    assert second.split()[:6] == ["2", "2%", "-", "-", "-", "-4.0"]


def test_a_minimum_score_is_a_probability(run: Run) -> None:
    below, above = (run("query", "red car", "--min-score", least) for least in (0.99, 0.995))
    assert below.out.count("red.png") == 1
    assert (above.code, above.out) == (0, "")


def test_no_hits_tells_how_to_see_the_nearest_ones(run: Run) -> None:
    ran = run("query", "purple")
    assert (ran.code, ran.out) == (0, "")
    assert "no hits of at least 50%" in ran.err
    assert "--min-score 0 shows the nearest ones all the same" in ran.err


@pytest.mark.parametrize("options", [["--weight", "0.4"], ["--mode", "cl"]])
def test_with_a_weight_or_captions_alone_scores_are_plain(run: Run, options: list[str]) -> None:
    query, hits = (
        run("query", "red car", *options, "--json").json[key] for key in ("query", "hits")
    )
    assert (query["unit"], query["min_score"]) == ("score", None)
    assert [hit["log_odds"] for hit in hits] == [{}] * len(hits)
    assert run("query", "red car", *options).out.splitlines()[0].split() == PLAIN_HEADINGS


def test_with_an_image_scores_are_plain(indexed: Path, run: Run) -> None:
    for text in ([], ["red"]):
        answer = run("query", *text, "--image", indexed / "red.png", "--json").json
        assert answer["query"]["unit"] == "score"
        assert len(answer["hits"]) == 4  # no cut-off


def test_mode_cm_is_calibrated_too(run: Run) -> None:
    [hit] = run("query", "red car", "--mode", "cm", "--json").json["hits"]
    assert hit["score"] == pytest.approx(probability(6 - 4))
    assert (hit["cl"], hit["words"], hit["caption"]) == (None, None, None)


def test_the_contact_sheet_shows_percent(run: Run, tmp_path: Path) -> None:
    assert run("query", "red car", "--sheet", tmp_path / "hits.html").code == 0
    assert "<b>99%</b>" in (tmp_path / "hits.html").read_text(encoding="utf-8")


def test_the_help_tells_which_scores_compare(run: Run) -> None:
    shown = " ".join(run("query", "--help").out.split())
    assert "a probability from 0 to 1 where the model is calibrated" in shown
    assert "0 shows everything" in shown
    assert "the model's cut-off" in shown
    assert "Probabilities of different queries and modes compare" in shown
    assert "With --weight, --image or mode cl" in shown


@pytest.mark.parametrize(
    ("score", "unit", "text"),
    [
        (0.8712, "probability", "87%"),
        (0.004, "probability", "<1%"),
        (0.9999, "probability", ">99%"),
        (0.994, "probability", "99%"),
        (0.0, "probability", "0%"),
        (1.0, "probability", "100%"),
        (0.8712, "score", "0.871"),
        (-0.25, "score", "-0.250"),
    ],
)
def test_a_probability_is_shown_in_percent_and_a_score_as_a_number(
    score: float, unit: Unit, text: str
) -> None:
    assert score_text(score, unit) == text


@pytest.mark.parametrize(
    ("unit", "min_score", "advice"),
    [
        ("score", None, "no hits; try other words or fewer filters"),
        ("probability", 0.0, "no hits; try other words or fewer filters"),
        ("score", 0.3, "a lower --min-score"),
        ("probability", 0.05, "no hits of at least 5%"),
    ],
)
def test_advice_names_the_cut_off_only_where_there_is_one(
    unit: Unit, min_score: float | None, advice: str
) -> None:
    result = SearchResult((), False, "en", "clm", None, unit, min_score)
    assert advice in no_hits(result)
