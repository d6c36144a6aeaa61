"""The concept table: well formed, and right where it is easy to be wrong."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from capsearch.encoders.text import concepts
from capsearch.encoders.text.languages import HAN, KANA, simplify

CONCEPTS = concepts.all_concepts()
# Written so in mainland China too: their Simplified forms are not in common fonts, or OpenCC errs.
AS_WRITTEN = set("魟鮟鱇鳽鵟鰤薹篠")


def test_there_are_several_thousand_and_no_id_twice() -> None:
    folder = Path(concepts.__file__).parent
    lines = [line for path in folder.glob("*.tsv") for line in path.open(encoding="utf-8")]
    rows = len(lines) - len(list(folder.glob("*.tsv")))
    assert len(CONCEPTS) == rows > 9000


def test_ids_are_slugs_and_every_language_has_a_name() -> None:
    for one in CONCEPTS.values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.id)
        for names in one.names.values():
            assert all(name and name == name.strip() for name in names), one.id
            assert len(set(names)) == len(names), one.id


def test_broader_concepts_exist_and_never_lead_back() -> None:
    for one in CONCEPTS.values():
        for above in one.broader:
            assert above in CONCEPTS, (one.id, above)
            assert one.id not in concepts.broader(above), one.id


def test_no_wordnet_id_stands_twice() -> None:
    counts = Counter(one.wordnet for one in CONCEPTS.values() if one.wordnet)
    assert all(re.fullmatch(r"[nvar]\d{8}", wordnet) for wordnet in counts)
    assert [wordnet for wordnet, count in counts.items() if count > 1] == []


def test_chinese_is_simplified_and_without_kana_and_japanese_is_japanese() -> None:
    for one in CONCEPTS.values():
        for name in one.names["zh"]:
            assert not KANA.search(name), one.id
            assert simplify(name) == name or AS_WRITTEN & set(name), (one.id, name)
        for name in one.names["ja"]:
            assert KANA.search(name) or HAN.search(name) or name.isascii() or "・" in name, (
                one.id,
                name,
            )


@pytest.mark.parametrize(
    ("name", "concept"),
    [
        ("mushroom", "mushroom"),
        ("イルカ", "dolphin"),
        ("麻婆豆腐", "mapo-tofu"),
        ("ヴァイオリン", "violin"),
        ("バイオリン", "violin"),
        ("城堡", "castle"),
        ("鲸鱼", "whale"),
        ("鯨魚", "whale"),
        ("Golden Retriever", "golden-retriever"),
    ],
)
def test_names_in_any_language_and_spelling_find_their_concept(name: str, concept: str) -> None:
    assert concept in {one.id for one in concepts.named(name)}


def test_an_unknown_name_finds_nothing() -> None:
    assert concepts.named("zyzzyva express") == ()


def test_animals_contain_cats_and_no_drums() -> None:
    animals = concepts.narrower("animal")
    assert {"animal", "cat", "dolphin", "golden-retriever"} <= animals
    assert "drum" not in animals
    assert "animal" in concepts.broader("golden-retriever")


def test_an_unknown_id_is_an_error() -> None:
    with pytest.raises(KeyError):
        concepts.by_id("no-such-concept")


def test_names_are_looked_up_as_they_are_folded() -> None:
    for one in list(CONCEPTS.values())[::7]:
        for names in one.names.values():
            assert all(one in concepts.named(name) for name in names), one.id


def test_a_label_means_its_likeliest_concept() -> None:
    kite = concepts.likeliest("kite")
    assert kite is not None and kite.table == "objects"
    assert concepts.likeliest("no such thing") is None


def test_names_in_any_language_lead_to_what_is_below() -> None:
    assert concepts.under("動物") == concepts.under("动物") == concepts.narrower("animal")
    assert "cat" in concepts.under("animal") and "cat" in concepts.under("貓")
    assert concepts.under("no such thing") == frozenset()


def test_a_tag_is_shown_in_the_readers_language() -> None:
    assert concepts.label_of("cat", "cat", "zh") == "猫"
    assert concepts.label_of("", "Grandma", "zh") == "Grandma"
    assert concepts.label_of("not-in-this-table", "x", "ja") == "x"


def test_a_name_means_what_it_is_the_commonest_name_of_in_its_language() -> None:
    for name, language, meant in (
        ("货车", "zh", "truck"),  # 貨車 is a freight car
        ("钟楼", "zh", "clock-tower"),
        ("厨房", "zh", "kitchen"),
        ("電車", "ja", "train"),
    ):
        found = concepts.likeliest(name, language)
        assert found is not None and found.id == meant, name
