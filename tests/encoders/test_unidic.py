"""The reduced dictionary for Japanese: the same words and features as unidic-lite, for any text."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import capsearch_unidic
import fugashi
import numpy as np
import pytest
import unidic_lite
from hypothesis import given, settings
from hypothesis import strategies as st

from capsearch.encoders.text import concepts
from capsearch.encoders.text.languages import normalise

ENCODERS = Path(__file__).resolve().parents[2] / "encoders"


def load_reduce():
    """The module that builds the dictionary; it is not part of the package."""
    spec = spec_from_file_location("reduce", ENCODERS / "unidic" / "reduce.py")
    module = module_from_spec(spec)
    sys.modules["reduce"] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


reduce = load_reduce()
WHOLE = fugashi.Tagger(f'-d "{unidic_lite.DICDIR}"')
REDUCED = fugashi.Tagger(capsearch_unidic.ARGUMENTS)
SENTENCES = (
    "猫がノートパソコンの上で寝ている",
    "赤い服を着た女の子が、公園でアイスクリームを食べています。",
    "すもももももももものうち",
    "東京特許許可局の新人歌手による新春シャンソンショー",
    "1999年12月31日に２０００円で買った iPhone のケース",
)
NAMES = [name for concept in concepts.all_concepts().values() for name in concept.names["ja"]]


def words(tagger: fugashi.Tagger, text: str) -> list[tuple[str | None, ...]]:
    cut = tagger(normalise(text).lower())
    return [(w.surface, w.feature.pos1, w.feature.pos2, w.feature.orthBase) for w in cut]


def test_names_of_concepts_are_cut_alike():
    assert len(NAMES) > 9000
    texts = [*SENTENCES, *NAMES]
    assert [text for text in texts if words(REDUCED, text) != words(WHOLE, text)] == []


PARTS = st.one_of(
    st.sampled_from([*SENTENCES, *NAMES]),
    st.text("あいうえおかきくけこたてとなにのはをんっゃー", min_size=1, max_size=8),
    st.text("アイウエオカラメンー・日本人女性東京大山上下子猫犬赤青", min_size=1, max_size=8),
    st.text("abcz019.,!? 。、「」〇々㐀𠀀é한🐱", max_size=4),
    st.text(max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=8).map("".join))
def test_any_text_is_cut_alike(text):
    assert words(REDUCED, text) == words(WHOLE, text)


def test_it_takes_a_third_of_the_place():
    sizes = [
        sum(path.stat().st_size for path in Path(folder).iterdir())
        for folder in (capsearch_unidic.DICDIR, unidic_lite.DICDIR)
    ]
    assert sizes[0] < 0.35 * sizes[1]


def entries(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """Of (left context, right context, cost, feature)."""
    made = [(left, right, 1, cost, feature, 0) for left, right, cost, feature in rows]
    return np.array(made, reduce.ENTRY)


def test_merged_contexts_cost_what_they_did():
    random = np.random.default_rng(0)
    costs = random.integers(-9, 9, (6, 6)).astype(np.int16)
    costs[3], costs[:, 5] = costs[1], costs[:, 2]  # equal contexts
    used = entries((1, 2, 0, 0), (3, 5, 0, 0), (2, 1, 0, 0))  # and 4 in none
    merged, lefts, rights = reduce.merge_contexts(costs, used)
    assert merged.shape == (3, 3)  # 0, 1 = 3, 2; 0, 1, 2 = 5
    assert (lefts[0], rights[0]) == (0, 0)
    for left in (0, 1, 2, 3):
        for right in (0, 1, 2, 5):
            assert merged[lefts[left], rights[right]] == costs[left, right]


def test_of_equal_contexts_the_cheapest_entries_stay():
    rows = entries((1, 1, 5, 0), (1, 1, 4, 10), (2, 1, 9, 0), (1, 1, 4, 20), (1, 1, 4, 10))
    assert reduce._unbeaten(rows.tolist()) == [1, 2, 3]  # 20 ties with 10; the last repeats it


def test_fields_with_commas_stay_quoted():
    feature = '記号,一般,*,*,*,*,*,*,",",*,",",*,*,*,*,*,*'.encode()
    assert reduce._kept_fields(feature).decode() == '記号,一般,,,,,,,,,",",,,,,,'


def test_another_format_is_refused(tmp_path):
    (tmp_path / "sys.dic").write_bytes(b"\0" * 80)
    with pytest.raises(ValueError, match="is not a dictionary of MeCab"):
        reduce.Lexicon.read(tmp_path / "sys.dic")


def test_mecab_needs_nothing_but_the_package(tmp_path):
    """fugashi takes the settings of unidic-lite where that is installed, as it is for tests."""
    script = """
import sys

class Nothing:
    def find_spec(self, name, *_):
        if name in ("unidic", "unidic_lite"):
            raise ImportError(name)

sys.meta_path.insert(0, Nothing())
from capsearch.encoders.text.tokenizers import tokenizer
assert tokenizer("ja").tokens("猫が寝て") == ("猫", "が", "寝る", "て")
"""
    environment = {name: value for name, value in os.environ.items() if name != "MECABRC"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
