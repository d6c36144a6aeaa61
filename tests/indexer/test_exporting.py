"""Exports: every format, marks of what models wrote, and files that are never overwritten."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from PIL import Image

from capsearch.engine.errors import IndexProblem
from capsearch.engine.records import Caption, Document, ImageRecord, Tag
from capsearch.indexer import enrichment, exporting
from capsearch.indexer import exporting as xmp_sidecars
from capsearch.indexer.enrichment import enrich
from capsearch.indexer.exporting import Selection
from capsearch.indexer.pipeline import index
from capsearch.indexer.sources.captions import read_captions
from capsearch.indexer.sources.metadata import read_xmp_sidecar
from capsearch.indexer.sqlite.collection import Collection

SOURCE = "model:toy-captions@1"
EVERYTHING = Selection()


@pytest.fixture
def described(tmp_path, image_folder, describing_model):
    (image_folder / "red.txt").write_text("a red car\n", encoding="utf-8")
    with Collection.create(tmp_path / "index", describing_model) as collection:
        index(collection, [image_folder])
        enrich(collection)
        yield collection


def document(*tags: Tag, captions: tuple[Caption, ...] = ()) -> Document:
    return Document(ImageRecord("a", ("/p/a.jpg",), 1, 1, 1, "JPEG"), captions, tags)


def test_coco_has_images_captions_and_tags_and_says_who_wrote_them(described):
    content = json.loads(exporting.coco(described, EVERYTHING))
    assert [one["file_name"] for one in content["images"]] == [
        "blue.png", "green.jpg", "red.png", "trips/2024/yellow.webp",
    ]  # fmt: skip
    assert len(content["annotations"]) == 4 * 3 + 1
    [person] = [one for one in content["annotations"] if one["source"] == "sidecar"]
    assert (person["image_id"], person["caption"], person["confidence"]) == (3, "a red car", 1)
    blue = [one for one in content["tags"] if one["image_id"] == 1]
    assert [(one["label"], one["language"]) for one in blue] == [
        ("blue", "en"), ("蓝色", "zh"), ("青", "ja"),
    ]  # fmt: skip
    assert {one["source"] for one in blue} == {"model:toy-tags@1"}


def test_a_table_has_a_line_for_each_caption_and_tag(described):
    rows = list(csv.DictReader(StringIO(exporting.table(described, Selection(languages=("en",))))))
    assert tuple(rows[0]) == exporting.COLUMNS
    red = [row for row in rows if row["file"] == "red.png"]
    assert [(row["caption"], row["tag"], row["source"]) for row in red] == [
        ("a red car", "", "sidecar"),
        ("a red image", "", SOURCE),
        ("", "red", "model:toy-tags@1"),
    ]


@pytest.mark.parametrize(
    ("name", "write"), [("x.json", exporting.coco), ("x.csv", exporting.table)]
)
def test_reading_an_export_again_gives_what_people_wrote(described, tmp_path, name, write):
    (tmp_path / name).write_text(write(described, EVERYTHING), encoding="utf-8")
    [only] = read_captions(tmp_path / name)
    assert (only.file, only.caption.text) == ("red.png", "a red car")


def test_a_selection_by_folder_author_and_language(described, image_folder):
    chosen = Selection((image_folder / "trips",), "models", ("ja",))
    [only] = exporting.documents(described, chosen)
    assert [one.text for one in only.captions] == ["黄の画像"]
    [person] = exporting.documents(described, Selection(written_by="people"))
    assert (len(person.captions), person.tags) == (1, ())


def test_text_files_are_laid_out_as_the_images_are(described, tmp_path):
    done = exporting.text_files(described, Selection(languages=("en",)), tmp_path / "texts")
    assert (done.written, done.skipped) == (4, ())
    red, yellow = tmp_path / "texts" / "red.txt", tmp_path / "texts/trips/2024/yellow.txt"
    assert red.read_text() == "a red car\na red image\nred\n"
    assert yellow.read_text() == "a yellow image\nyellow\n"
    red.write_text("mine")
    again = exporting.text_files(described, Selection(languages=("en",)), tmp_path / "texts")
    assert (again.written, [one.path for one in again.skipped]) == (0, [str(red)])
    assert red.read_text() == "mine"


def test_text_files_are_not_written_beside_images(described, image_folder):
    with pytest.raises(IndexProblem, match="taken for a person's captions"):
        exporting.text_files(described, EVERYTHING, image_folder)
    assert (image_folder / "red.txt").read_text() == "a red car\n"


class TestXmp:
    def test_people_come_before_models_and_models_are_named(self):
        captions = (
            Caption("a person's", "en", "iptc"),
            Caption("a model's", "en", SOURCE, 0.9),
            Caption("模型的 & <b>", "zh", SOURCE, 0.4),
        )
        text = xmp_sidecars.packet(document(captions=captions), ("en", "zh", "ja"))
        assert '<rdf:li xml:lang="x-default">a person\'s</rdf:li>' in text
        assert '<rdf:li xml:lang="zh">模型的 &amp; &lt;b&gt;</rdf:li>' in text
        assert "a model's" not in text  # a person wrote in English
        assert "capsearch, by model: toy-captions@1" in text

    def test_keywords_stand_in_their_hierarchy(self):
        text = xmp_sidecars.packet(document(Tag("cat", "en", 0.9, SOURCE, "cat")), ("en", "ja"))
        assert "<rdf:li>animal|mammal|cat</rdf:li>" in text  # Lightroom
        assert "<rdf:li>動物/哺乳類/猫</rdf:li>" in text  # digiKam

    def test_the_reader_takes_what_people_wrote_and_leaves_what_models_wrote(self, tmp_path):
        captions = (Caption("a person's own", "en", "hand"), Caption("模型写的", "zh", SOURCE, 0.5))
        tags = (
            Tag("Grandma", "en", 1.0, "iptc"),
            Tag("Sofa", "en", 1.0, "iptc", "couch"),
            Tag("cat", "en", 0.9, SOURCE, "cat"),
        )
        path = tmp_path / "a.xmp"
        path.write_text(
            xmp_sidecars.packet(document(*tags, captions=captions), ("en", "zh")), encoding="utf-8"
        )
        found = read_xmp_sidecar(path)
        assert {one.text for one in found.captions} == {"a person's own"}
        assert {one.label for one in found.tags} == {"Grandma", "Sofa"}

    def test_a_second_run_replaces_its_own_sidecars(self, described, image_folder):
        first = exporting.xmp_files(described, EVERYTHING, "lightroom")
        assert (first.written, first.skipped) == (4, ())
        assert exporting.xmp_files(described, EVERYTHING, "lightroom").written == 4
        assert (image_folder / "trips" / "2024" / "yellow.xmp").is_file()
        exporting.xmp_files(described, EVERYTHING, "digikam")
        assert (image_folder / "blue.png.xmp").is_file()

    def test_two_images_with_one_lightroom_name_do_not_share_a_sidecar(
        self, described, image_folder
    ):
        twin = image_folder / "red.webp"
        Image.open(image_folder / "green.jpg").resize((40, 40)).save(twin)
        index(described, [])
        enrich(described)
        done = exporting.xmp_files(described, EVERYTHING, "lightroom")
        [skipped] = done.skipped
        assert (skipped.path, skipped.reason) == (str(twin), "shares red.xmp with another image")
        captions = {one.text for one in read_xmp_sidecar(image_folder / "red.xmp").captions}
        assert "a red car" in captions

    def test_sidecars_of_others_and_edited_ones_stay(self, described, image_folder):
        others = image_folder / "blue.xmp"
        others.write_text("<x/>")
        exporting.xmp_files(described, EVERYTHING, "lightroom")
        edited = image_folder / "red.xmp"
        edited.write_text(edited.read_text(encoding="utf-8").replace("a red", "my"), "utf-8")
        before = edited.read_bytes()
        again = exporting.xmp_files(described, EVERYTHING, "lightroom")
        assert [one.path for one in again.skipped] == [str(others), str(edited)]
        assert (others.read_text(), edited.read_bytes()) == ("<x/>", before)

    def test_an_index_does_not_take_its_own_export_for_a_persons(self, described):
        before = {one.record.id: one for one in exporting.documents(described, EVERYTHING)}
        exporting.xmp_files(described, EVERYTHING, "lightroom")
        summary = index(described, [])
        assert summary.captions_added == 0
        after = {one.record.id: one for one in exporting.documents(described, EVERYTHING)}
        assert after == before

    def test_what_was_accepted_comes_back_as_a_persons(self, described, image_folder, tmp_path):
        [blue] = [
            one for one in exporting.documents(described, EVERYTHING) if "blue" in one.record.path
        ]
        enrichment.accept(described, blue.record.id, blue.captions[0])
        exporting.xmp_files(described, EVERYTHING, "lightroom")
        found = read_xmp_sidecar(image_folder / "blue.xmp")
        assert {one.text for one in found.captions} == {"a blue image"}

    def test_an_image_that_is_gone_is_named(self, described, image_folder):
        (image_folder / "blue.png").unlink()
        done = exporting.xmp_files(described, EVERYTHING, "lightroom")
        assert [Path(one.path).name for one in done.skipped] == ["blue.png"]
        assert not (image_folder / "blue.xmp").exists()


def test_captions_without_a_probability_are_read_as_before(tmp_path):
    table = tmp_path / "x.csv"
    table.write_text("file,caption\na.jpg,a cat\n")
    assert [one.caption for one in read_captions(table)] == [
        replace(Caption("a cat", "en", "csv"), confidence=1.0)
    ]
