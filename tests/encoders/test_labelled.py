"""Labels of published sets are concepts, and what is held out is held out everywhere."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.encoders.data import labels as labelled
from capsearch.encoders.data.dataset import read, read_labelled
from capsearch.encoders.data.labels import concepts_of, split_of, split_of_photo
from capsearch.encoders.text import concepts
from capsearch.engine.errors import DataProblem

LABELLED = sorted(labelled.labelled_concepts())


def write_records(folder: Path, name: str, *records: dict[str, object]) -> None:
    lines = "".join(json.dumps(one) + "\n" for one in records)
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


@pytest.mark.parametrize(
    ("labelled_set", "label", "expected"),
    [
        ("instruments30", "saxaphone", ("saxophone",)),
        ("instruments30", "casaba", ("cabasa",)),
        ("fruit-veg36", "jalepeno", ("jalapeno",)),
        ("mini-imagenet", "file", ("filing-cabinet",)),
        ("mini-imagenet", "slot", ("slot-machine",)),
        ("clothing", "Body", ("bodysuit",)),
        ("clothing", "Skip", ()),
        ("oxford-flowers102", "watercress", ("nasturtium",)),
        ("oxford-flowers102", "pelargonium", ("blue-hibiscus",)),
        ("stanford-cars", "BMW 3 Series Wagon 2012", ("bmw-3-series", "station-wagon")),
        ("pacs", "dog (art painting)", ("dog", "painting")),
    ],
)
def test_a_label_stands_for_what_its_photographs_show(
    labelled_set: str, label: str, expected: tuple[str, ...]
) -> None:
    assert concepts_of(labelled_set, label) == expected


def test_every_concept_of_the_table_exists() -> None:
    assert [one for one in LABELLED if one not in concepts.all_concepts()] == []


def test_no_label_names_a_concept_and_one_above_it() -> None:
    for labels in labelled._labels().values():
        for label, ids in labels.items():
            above = {up for one in ids for up in concepts.broader(one) - {one}}
            assert not above & set(ids), label


def test_a_label_of_another_set_counts_if_it_names_one_concept() -> None:
    assert concepts_of("my photos", "Dolphin") == ("dolphin",)
    assert concepts_of("my photos", "イルカ") == ("dolphin",)
    assert len(concepts.named("kiwi")) == 2  # a bird and a fruit
    assert concepts_of("my photos", "kiwi") == ()
    assert concepts_of("my photos", "zyzzyva express") == ()


def test_a_label_of_another_set_may_be_the_id_of_a_concept() -> None:
    ids = {one.id for one in concepts.named("kiwi")}
    assert {concepts_of("my photos", one) for one in ids} == {(one,) for one in ids}
    assert concepts_of("clothing", "dolphin") == ()  # the labels of this set have their own meaning


def test_about_an_eighth_of_the_concepts_is_held_out_for_the_test_and_half_of_that_for_val() -> (
    None
):
    counts = Counter(map(split_of, LABELLED))
    assert 0.11 < counts["test"] / len(LABELLED) < 0.14
    assert 0.05 < counts["val"] / len(LABELLED) < 0.09


def test_common_things_and_all_with_a_narrower_label_are_trained_on() -> None:
    assert {split_of(one) for one in ("dog", "cat", "car", "person", "pizza", "kitchen")} == {
        "train"
    }
    above = {up for one in LABELLED for up in concepts.broader(one) - {one}}
    assert {split_of(one) for one in above} == {"train"}


def test_a_kind_of_a_concept_held_out_is_held_out_with_it() -> None:
    assert split_of("organ") == "test"
    assert {split_of(one) for one in concepts.narrower("organ")} == {"test"}


def test_a_photograph_of_a_concept_held_out_is_never_trained_on() -> None:
    assert split_of("tuba") == "test"
    assert {split_of_photo(f"instruments30/{n}.jpg", ["tuba"]) for n in range(50)} == {"test"}
    assert split_of("photocopier") == "val"
    assert split_of_photo("a.jpg", ["dog", "photocopier"]) == "val"
    assert split_of_photo("a.jpg", ["photocopier", "tuba"]) == "test"


def test_photographs_of_other_concepts_are_split_by_the_hash_of_their_id() -> None:
    counts = Counter(split_of_photo(f"set/{number}.jpg", ["dog"]) for number in range(4000))
    assert 0.72 < counts["train"] / 4000 < 0.78
    assert 0.08 < counts["val"] / 4000 < 0.12
    assert 0.13 < counts["test"] / 4000 < 0.17
    assert split_of_photo("pacs/a.jpg", ["dog"]) == split_of_photo("pacs/a.jpg", ["cat"])


@given(st.text())
def test_any_id_has_a_split(photo_id: str) -> None:
    assert split_of_photo(photo_id, ()) in ("train", "val", "test")


def test_the_names_held_out_are_those_of_all_languages_folded() -> None:
    names = labelled.folded_names(labelled.held_out())
    assert {"tuba", "大号", concepts.fold("チューバ")} <= names
    assert "dog" not in names


def test_packed_photographs_have_concepts_and_the_splits_of_what_is_held_out(
    tmp_path: Path,
) -> None:
    write_records(
        tmp_path,
        "instruments30",
        {"id": "instruments30/1.jpg", "file": "a.webp", "set": "instruments30", "label": "tuba"},
        {"id": "instruments30/2.jpg", "file": "b.webp", "set": "instruments30", "label": "guitar"},
    )
    write_records(
        tmp_path,
        "clothing",
        {"id": "clothing/3.jpg", "file": "c.webp", "set": "clothing", "label": "Skip"},
    )
    data = read_labelled([tmp_path])
    assert [(one.id, one.concepts, one.labelled_set) for one in data.images] == [
        ("instruments30/1.jpg", ("tuba",), "instruments30"),
        ("instruments30/2.jpg", ("guitar",), "instruments30"),
    ]
    assert data.images[0].split == "test"
    assert data.images[1].split == split_of_photo("instruments30/2.jpg", ["guitar"])
    for image in read_labelled([tmp_path], all_concepts=True).images:
        assert image.split == split_of_photo(image.id, ())


def test_the_file_names_the_set_of_records_that_do_not(tmp_path: Path) -> None:
    write_records(tmp_path, "mine", {"id": 1, "file": "a.webp", "label": "dolphin"})
    (image,) = read_labelled([tmp_path]).images
    assert (image.labelled_set, image.concepts, image.captions) == ("mine", ("dolphin",), {})


def test_an_image_may_have_captions_in_one_source_and_a_label_in_another(tmp_path: Path) -> None:
    captions = {"en": [{"text": "A whale jumps.", "source": "mine"}]}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    write_records(tmp_path / "one", "mine", {"id": 1, "file": "a.webp", "captions": captions})
    write_records(tmp_path / "two", "mine", {"id": 1, "file": "a.webp", "label": "dolphin"})
    (image,) = read([tmp_path / "one", tmp_path / "two"]).images
    assert image.captions["en"][0].text == "A whale jumps."
    assert (image.concepts, image.labelled_set) == (("dolphin",), "mine")


def test_data_without_a_known_label_is_an_error_that_says_what_is_needed(tmp_path: Path) -> None:
    write_records(tmp_path, "mine", {"id": 1, "file": "a.webp", "label": "zyzzyva express"})
    with pytest.raises(DataProblem, match="needs `label`, the name of a concept"):
        read_labelled([tmp_path])
