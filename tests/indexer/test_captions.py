"""Captions beside images: sidecars, COCO JSON, CSV, and errors that name file and line."""

from __future__ import annotations

import json

import pytest

from capsearch.engine.errors import InvalidCaptions
from capsearch.engine.records import Caption
from capsearch.indexer.sources.captions import (
    MAX_SIDECAR_BYTES,
    NamedCaption,
    read_captions,
    read_sidecar,
)
from capsearch.indexer.sources.charsets import read_text


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("a cat 猫 ねこ", "utf-8"),
        ("a cat 猫 ねこ", "utf-8-sig"),
        ("a cat 猫 ねこ", "utf-16"),
        ("一只猫趴在笔记本电脑上", "gb18030"),
        ("两个孩子在公园里放风筝。", "gb18030"),
        ("ノートパソコンの上の猫", "shift_jis"),
        ("赤い服を着た女性が歩いている", "shift_jis"),
        ("un café", "latin-1"),
    ],
)
def test_text_is_decoded_from_common_encodings(text, encoding):
    assert read_text(text.encode(encoding)) == text


def test_big_endian_utf16_is_decoded_by_its_byte_order_mark():
    assert read_text("\ufeff猫".encode("utf-16-be")) == "猫"


def test_each_line_of_a_txt_sidecar_is_a_caption_in_its_own_language(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a red car\n\n一辆红色的车\n赤い車です\na red car\n", encoding="utf-8")
    assert read_sidecar(path) == (
        Caption("a red car", "en", "sidecar"),
        Caption("一辆红色的车", "zh", "sidecar"),
        Caption("赤い車です", "ja", "sidecar"),
    )


@pytest.mark.parametrize(
    ("content", "captions"),
    [
        ("a cat", [("a cat", "en")]),
        (["a cat", "一只猫"], [("a cat", "en"), ("一只猫", "zh")]),
        ({"caption": "a cat"}, [("a cat", "en")]),
        ({"captions": ["a cat", "a dog"]}, [("a cat", "en"), ("a dog", "en")]),
        ({"description": "a cat", "title": "IMG.jpg"}, [("a cat", "en")]),
        ({"caption": "猫", "language": "ja"}, []),
        ({"caption": "子猫", "language": "ja"}, [("子猫", "ja")]),
        ([{"caption": "un chat", "lang": "fr"}], [("un chat", "fr")]),
        ([{"caption": "a cat"}, "a dog"], [("a cat", "en"), ("a dog", "en")]),
        ({"captions": [{"text": "二匹の犬", "language": "ja"}]}, [("二匹の犬", "ja")]),
        ({"width": 3}, []),
        ({"caption": None}, []),
        (7, []),
    ],
)  # fmt: skip
def test_a_json_sidecar_may_be_string_list_or_object(tmp_path, content, captions):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert [(caption.text, caption.language) for caption in read_sidecar(path)] == captions


def test_a_broken_json_sidecar_names_its_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{\n"caption": oops}')
    with pytest.raises(InvalidCaptions, match=r"a\.json, line 2: not json"):
        read_sidecar(path)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "[" * 5_000 + "]" * 5_000, f'{{"id": {"9" * 5_000}}}']
)
def test_json_that_is_no_caption_but_an_attack_is_refused(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InvalidCaptions, match=r"a\.json"):
        read_sidecar(path)


def test_a_sidecar_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * (MAX_SIDECAR_BYTES + 1))
    with pytest.raises(InvalidCaptions, match="more than 1 MB is not a caption"):
        read_sidecar(path)


def test_a_sidecar_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InvalidCaptions, match="cannot be read: No such file"):
        read_sidecar(tmp_path / "gone.txt")


def write_coco(tmp_path, images, annotations):
    path = tmp_path / "coco.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations}), encoding="utf-8")
    return path


def test_coco_json_names_images_by_file_name(tmp_path):
    path = write_coco(
        tmp_path,
        [{"id": 1, "file_name": "a.jpg"}, {"id": "b", "file_name": "sub/b.jpg"}],
        [
            {"image_id": "b", "caption": "a dog"},
            {"image_id": 1, "caption": "一只猫"},
            {"image_id": 1, "caption": "子猫", "language": "ja"},
            {"image_id": 1, "caption": ""},
            {"image_id": 1, "caption": "two cats", "language": 5},
        ],
    )
    assert read_captions(path) == (
        NamedCaption("sub/b.jpg", Caption("a dog", "en", "coco")),
        NamedCaption("a.jpg", Caption("一只猫", "zh", "coco")),
        NamedCaption("a.jpg", Caption("子猫", "ja", "coco")),
        NamedCaption("a.jpg", Caption("two cats", "en", "coco")),
    )


@pytest.mark.parametrize(
    ("images", "annotations", "message"),
    [
        ({}, [], "has a list 'images', this has none"),
        ([], None, "has a list 'annotations', this has none"),
        ([{"id": 1}], [], r"images\[0\] has no 'file_name'"),
        ([], [{"caption": "x"}], r"annotations\[0\] has no 'image_id'"),
        ([{"id": 1, "file_name": "a"}], [{"image_id": 1, "bbox": []}], r"\[0\] has no 'caption'"),
        ([], [{"image_id": 9, "caption": "x"}], "about image 9, which is not among its images"),
        (["a.jpg"], [], r"images\[0\] has no 'id'"),
    ],
)
def test_coco_json_with_something_missing_is_refused_with_the_place(
    tmp_path, images, annotations, message
):
    with pytest.raises(InvalidCaptions, match=message):
        read_captions(write_coco(tmp_path, images, annotations))


def test_json_that_is_not_coco_is_refused(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[1, 2]")
    with pytest.raises(InvalidCaptions, match="a COCO captions json has a list 'images'"):
        read_captions(path)


@pytest.mark.parametrize(
    "table",
    [
        "file,caption\na.jpg,a cat\nb.jpg,一只狗\n",
        "Filename;Text\na.jpg;a cat\nb.jpg;一只狗\n",
        "path\tcaption\tother\na.jpg\ta cat\t1\nb.jpg\t一只狗\t2\n",
    ],
)
def test_a_table_has_a_header_and_a_comma_semicolon_or_tab(tmp_path, table):
    path = tmp_path / "captions.csv"
    path.write_text(table, encoding="utf-8")
    assert read_captions(path) == (
        NamedCaption("a.jpg", Caption("a cat", "en", "csv")),
        NamedCaption("b.jpg", Caption("一只狗", "zh", "csv")),
    )


def test_a_table_may_state_languages_and_quote_commas_and_lines(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_text('file,caption,language\na.jpg,"one, two\nthree",\nb.jpg,子猫,ja\n', "utf-8")
    assert [(named.caption.text, named.caption.language) for named in read_captions(path)] == [
        ("one, two three", "en"),
        ("子猫", "ja"),
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("photo,words\na.jpg,x\n", "line 1: no column named file or .* has photo, words"),
        ("file,words\na.jpg,x\n", "line 1: no column named caption or"),
        ("", "line 1: no column named file .* the header has nothing"),
        ("file,caption\na.jpg,ok then\n,lost one\n", "line 3: no file name"),
        ("file,caption\na.jpg\n", "line 2: fewer columns than the header"),
    ],
)  # fmt: skip
def test_a_table_with_something_missing_is_refused_with_the_line(tmp_path, table, message):
    path = tmp_path / "captions.csv"
    path.write_text(table)
    with pytest.raises(InvalidCaptions, match=message):
        read_captions(path)


def test_another_kind_of_file_is_refused_with_the_kinds_that_are_read(tmp_path):
    with pytest.raises(InvalidCaptions, match=r"one of \.csv, \.json, \.tsv, not '\.xlsx'"):
        read_captions(tmp_path / "captions.xlsx")


def test_a_captions_file_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(InvalidCaptions, match="cannot be read: No such file"):
        read_captions(tmp_path / "captions.csv")
