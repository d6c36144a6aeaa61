import numpy as np
import pytest

from capsearch.engine.metrics import (
    METRICS,
    WEIGHTS,
    Trial,
    best_weight,
    mean,
    precisions,
    ranks,
    summarise,
)


def scores(*rows):
    return np.array(rows, np.float32)


def labels(*numbers):
    return np.array(numbers, np.int64)


class TestRanks:
    def test_the_best_score_has_rank_one(self):
        assert ranks(scores([0.9, 0.1, 0.5]), labels(0), labels(0, 1, 2)) == [1]
        assert ranks(scores([0.9, 0.1, 0.5]), labels(1), labels(0, 1, 2)) == [3]

    def test_ties_count_against_the_right_answer_wherever_it_is_stored(self):
        same = scores([0.5, 0.5, 0.5])
        assert [ranks(same, labels(at), labels(0, 1, 2))[0] for at in range(3)] == [3, 3, 3]

    def test_a_difference_within_float_noise_is_a_tie(self):
        assert ranks(scores([0.5, 0.5 - 5e-7]), labels(0), labels(0, 1)) == [2]

    def test_the_best_of_several_right_answers_counts_and_the_others_are_not_in_its_way(self):
        # Items 0 and 1 are right and tie; only item 2 stands before them.
        assert ranks(scores([0.5, 0.5, 0.9, 0.1]), labels(7), labels(7, 7, 8, 9)) == [2]

    def test_a_query_without_an_answer_is_refused(self):
        with pytest.raises(ValueError, match="at least one right answer"):
            ranks(scores([0.5]), labels(1), labels(0))


class TestPrecision:
    def test_the_share_of_relevant_items_among_the_first(self):
        relevant = np.array([[True, False, True, False]])
        assert precisions(scores([0.9, 0.8, 0.7, 0.6]), relevant, 1) == [1]
        assert precisions(scores([0.9, 0.8, 0.7, 0.6]), relevant, 2) == [1 / 2]
        assert precisions(scores([0.9, 0.8, 0.7, 0.6]), relevant, 3) == [2 / 3]

    def test_ties_count_against_the_relevant_item(self):
        relevant = np.array([[True, False, False]])
        assert precisions(scores([0.5, 0.5, 0.1]), relevant, 1) == [0]

    def test_what_is_missing_below_the_last_item_counts_as_irrelevant(self):
        assert precisions(scores([0.5, 0.1]), np.array([[True, True]]), 5) == [2 / 5]


class TestMetrics:
    RANKED = np.array([1.0, 2.0, 6.0, 20.0])

    def test_mrr(self):
        assert METRICS["mrr"](self.RANKED) == pytest.approx((1 + 1 / 2 + 1 / 6 + 1 / 20) / 4)

    def test_recall(self):
        assert METRICS["r1"](self.RANKED) == 1 / 4
        assert METRICS["r5"](self.RANKED) == 2 / 4
        assert METRICS["r10"](self.RANKED) == 3 / 4

    def test_median_rank_of_an_even_number_lies_between_two(self):
        assert METRICS["medr"](self.RANKED) == (2 + 6) / 2


class TestSummary:
    def test_the_interval_encloses_the_value_and_is_the_same_every_time(self):
        ranked = np.arange(1.0, 51.0)
        first, second = summarise(ranked), summarise(ranked)
        assert first == second
        assert all(figure.low < figure.value < figure.high for figure in first.values())

    def test_other_metrics_may_be_summarised(self):
        figure = summarise(np.array([0.0, 1.0]), {"p5": mean})["p5"]
        assert (figure.value, figure.low, figure.high) == (1 / 2, 0, 1)

    def test_equal_ranks_leave_no_doubt(self):
        assert summarise(np.full(10, 2.0))["mrr"].low == summarise(np.full(10, 2.0))["mrr"].high

    def test_the_interval_has_the_width_statistics_expects(self):
        ranked = np.repeat([1.0, 50.0], 200)  # r1 is a fair coin: 1.96 * sqrt(.25 / 400)
        figure = summarise(ranked)["r1"]
        assert (figure.high - figure.low) / 2 == pytest.approx(1.96 * 0.5 / 20, abs=0.006)

    def test_more_queries_narrow_the_interval(self):
        few, many = (summarise(np.tile([1.0, 9.0], n))["mrr"] for n in (10, 1000))
        assert many.high - many.low < few.high - few.low


class TestBestWeight:
    ITEMS = labels(0, 1)

    def trial(self, cl, cm):
        return Trial(scores(cl), scores(cm), labels(0), self.ITEMS)

    def test_only_captions_know(self):
        # Right from .5 w > .1 (1 - w) on, that is w > 1/6: .17 is the first such step.
        # Right from .17 on (1/6 and more): the middle of that.
        assert best_weight([self.trial([0.5, 0.0], [0.0, 0.1])]) == 0.59

    def test_only_images_know(self):
        assert best_weight([self.trial([0.0, 0.1], [0.5, 0.0])]) == 0.42  # of 0 to .83

    def test_trials_weigh_the_same(self):
        wants_captions = self.trial([1.0, 0.0], [0.0, 1.0])  # right for w > .5
        wants_images = self.trial([0.0, 1.0], [9.0, 0.0])  # right for w < .9
        assert best_weight([wants_captions, wants_images]) == 0.7  # of .51 to .89

    def test_a_peak_by_chance_does_not_decide(self):
        # 300 queries are right from w = .51 on, one more at w = .1 and below: 1/301 is nothing.
        many = [self.trial([1.0, 0.0], [0.0, 1.0])] * 300
        assert best_weight([*many, self.trial([0.0, 9.0], [1.0, 0.0])]) == 0.76

    def test_steps_of_a_hundredth(self):
        assert WEIGHTS[:3] == (0.0, 0.01, 0.02) and WEIGHTS[-1] == 1.0

    def test_nothing_to_search_on(self):
        with pytest.raises(ValueError, match="no trial"):
            best_weight([])
