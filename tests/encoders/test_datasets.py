"""Caption data sets of every layout become the same records."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from capsearch.encoders.data.archives import ImageStore, image_key
from capsearch.encoders.data.dataset import Source, read
from capsearch.encoders.data.layouts import LAYOUTS, recognise
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import Caption


def record(number, file, split="val", **captions):
    sentences = {
        language: [{"text": text, "source": "test"} for text in texts]
        for language, texts in captions.items()
    }
    return {"id": number, "file": file, "split": split, "captions": sentences}


def write_jsonl(folder: Path, split: str, records: list) -> None:
    lines = "".join(json.dumps(one) + "\n" for one in records)
    (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def coco_json(sentences: dict[int, list[str]], **extra) -> str:
    images = [{"id": number, "file_name": f"{number:012d}.jpg"} for number in sentences]
    annotations = [
        {"image_id": number, "id": at, "caption": text, **extra}
        for number, texts in sentences.items()
        for at, text in enumerate(texts)
    ]
    return json.dumps({"images": images, "annotations": annotations})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images in `val`, one of them compressed, and one in `val-more`."""
    records = [
        record(7, "000000000007.webp", en=["A red kite.", "A kite."], zh=[], ja=[]),
        record("flickr-8", "8_ab.webp", en=["A boat."], zh=["一条船"]),
        record(9, "000000000009.webp", ja=["赤い屋根"]),
    ]
    write_jsonl(tmp_path, "val", records)
    write_jsonl(tmp_path, "val-more", [record(10, "x.webp", en=["A door."])])
    write_tar(tmp_path / "val-00.tar", {"000000000007.webp": b"seven", "8_ab.webp": b"eight"})
    write_tar(tmp_path / "val-01.tar.gz", {"000000000009.webp": b"nine"})
    write_tar(tmp_path / "val-more-00.tar", {"x.webp": b"ten"})
    return tmp_path


class TestJsonl:
    def test_ids_are_strings_and_languages_without_captions_are_absent(self, folder):
        images = read([folder], splits=["val"]).images
        assert [image.id for image in images] == ["7", "flickr-8", "9"]
        assert images[0].captions == {
            "en": (Caption("A red kite.", "en", "test"), Caption("A kite.", "en", "test"))
        }

    def test_every_split_is_read_unless_some_are_chosen(self, folder):
        assert read([folder]).splits == ("val", "val-more")

    def test_a_split_takes_its_name_from_the_file(self, tmp_path):
        write_jsonl(tmp_path, "holdout", [record(1, "1.jpg", split="test", en=["A hat."])])
        assert read([tmp_path], splits=["holdout"]).images[0].split == "holdout"

    def test_images_come_from_plain_and_compressed_archives(self, folder):
        data = read([folder], splits=["val"])
        assert {image.id: content for image, content in data.contents()} == {
            "7": b"seven",
            "flickr-8": b"eight",
            "9": b"nine",
        }

    def test_archives_of_a_split_with_the_same_prefix_are_not_read(self, folder):
        assert [path.name for path in read([folder], splits=["val"]).store.archives] == [
            "val-00.tar",
            "val-01.tar.gz",
        ]

    def test_loose_images_are_read_where_there_is_no_archive(self, tmp_path):
        write_jsonl(tmp_path, "mine", [record(1, "cat.jpg", en=["A cat."])])
        (tmp_path / "images").mkdir()
        (tmp_path / "images" / "cat.jpg").write_bytes(b"cat")
        ((_, content),) = read([tmp_path]).contents()
        assert content == b"cat"

    def test_an_unknown_split_is_refused_with_the_known_ones(self, folder):
        with pytest.raises(DataProblem, match="there is val, val-more"):
            read([folder], splits=["test"])

    @pytest.mark.parametrize(
        "line", ['{"captions": ', '{"captions": []}', '{"captions": {"en": [1]}}']
    )
    def test_a_bad_line_is_named(self, tmp_path, line):
        (tmp_path / "val.jsonl").write_text(line + "\n")
        with pytest.raises(DataProblem, match=r"val\.jsonl, line 1: expected an object with id"):
            read([Source(tmp_path, layout="jsonl")])


class TestCoco:
    def test_split_by_file_name_and_id_as_string(self, tmp_path):
        (tmp_path / "captions_train2014.json").write_text(coco_json({42: ["A green bench."]}))
        (image,) = read([tmp_path]).images
        assert (image.id, image.split, image.file) == ("42", "train", "000000000042.jpg")
        assert image.captions == {"en": (Caption("A green bench.", "en", "coco"),)}

    def test_a_split_given_by_the_caller_takes_precedence(self, tmp_path):
        path = tmp_path / "captions_train2014.json"
        path.write_text(coco_json({42: ["A green bench."]}))
        assert read([Source(path, split="mine")]).splits == ("mine",)

    def test_images_are_found_under_their_long_coco_names(self, tmp_path):
        (tmp_path / "captions_val.json").write_text(coco_json({42: ["A green bench."]}))
        (tmp_path / "val2014").mkdir()
        (tmp_path / "val2014" / "COCO_val2014_000000000042.jpg").write_bytes(b"bench")
        data = read([tmp_path])
        assert [content for _, content in data.contents()] == [b"bench"]

    def test_the_japanese_data_sets_are_distinguished(self, tmp_path):
        stair, yj = tmp_path / "stair_captions_v1.2_val.json", tmp_path / "yjcaptions26k_clean.json"
        stair.write_text(coco_json({1: ["緑のベンチ"]}, tokenized_caption="緑 の ベンチ"))
        yj.write_text(coco_json({1: ["公園のベンチ"]}))
        assert (recognise(stair), recognise(yj)) == ("stair", "yj")
        (image,) = read([stair, yj]).images
        assert [(one.source, one.language) for one in image.captions["ja"]] == [
            ("stair", "ja"),
            ("yj", "ja"),
        ]

    def test_a_broken_json_is_named(self, tmp_path):
        path = tmp_path / "captions_val.json"
        path.write_text("{")
        with pytest.raises(DataProblem, match=r"captions_val\.json is not valid json"):
            read([path])

    def test_a_json_without_captions_is_no_data_set(self, tmp_path):
        path = tmp_path / "captions_val.json"
        path.write_text('{"annotations": [{"image_id": 1}]}')
        with pytest.raises(DataProblem, match="needs `annotations` with image_id and caption"):
            read([Source(path, layout="coco")])


class TestSentenceLines:
    def test_coco_cn_with_its_lists_and_tags(self, tmp_path):
        (tmp_path / "imageid.human-written-caption.txt").write_text(
            "COCO_val2014_000000000042#zhc#0 绿色的长椅\n"
            "COCO_val2014_000000000042#zhc#1 公园里的长椅\n"
        )
        (tmp_path / "imageid.manually-translated-caption.txt").write_text(
            "COCO_val2014_000000000042#zhm#0 一张长椅\n"
        )
        (tmp_path / "imageid.human-written-caption.bosonseg.txt").write_text(
            "COCO_val2014_000000000042#zhc#0 绿色 的 长椅\n"
        )
        (tmp_path / "imageid.human-written-tags.txt").write_text(
            "COCO_val2014_000000000042 长椅 公园\n"
        )
        (tmp_path / "coco-cn_test.txt").write_text("COCO_val2014_000000000042\n")
        (image,) = read([tmp_path]).images
        assert (image.id, image.split, image.tags_zh) == ("42", "test", ("长椅", "公园"))
        assert [(one.text, one.source) for one in image.captions["zh"]] == [
            ("绿色的长椅", "coco-cn"),
            ("公园里的长椅", "coco-cn"),
            ("一张长椅", "coco-cn-translated"),
        ]

    def test_flickr8k_and_flickr8k_cn_are_merged_by_image(self, tmp_path):
        english, chinese = tmp_path / "Flickr8k.token.txt", tmp_path / "flickr8kzh.caption.txt"
        english.write_text("12_ab.jpg#0\tA dog runs .\n12_ab.jpg#1\tA brown dog .\n")
        chinese.write_text("12_ab.jpg#zhc#0 奔跑的狗\n12_ab.jpg#zhb#0 一只狗跑\n")
        (tmp_path / "Flickr_8k.devImages.txt").write_text("12_ab.jpg\n")
        (image,) = read([english, chinese]).images
        assert (image.id, image.split, image.file) == ("flickr-12", "val", "12_ab.jpg")
        assert [one.text for one in image.captions["en"]] == ["A dog runs .", "A brown dog ."]
        assert [one.generated for one in image.captions["zh"]] == [False, True]

    def test_images_in_no_split_list_are_training_images(self, tmp_path):
        (tmp_path / "Flickr8k.token.txt").write_text("12_ab.jpg#0\tA dog runs .\n")
        assert read([tmp_path]).splits == ("train",)


class TestMerging:
    def test_captions_add_up_and_repeats_are_dropped(self, tmp_path):
        one, other = tmp_path / "captions_val.json", tmp_path / "captions_val_zh.json"
        one.write_text(coco_json({1: ["A hat.", "A hat."]}))
        other.write_text(coco_json({1: ["一顶帽子"]}))
        (image,) = read([one, one, other]).images
        texts = {language: [c.text for c in found] for language, found in image.captions.items()}
        assert texts == {"en": ["A hat."], "zh": ["一顶帽子"]}

    def test_an_image_in_any_test_split_is_never_in_the_training_split(self, tmp_path):
        train, test = tmp_path / "captions_train.json", tmp_path / "captions_test.json"
        train.write_text(coco_json({1: ["A hat."]}))
        test.write_text(coco_json({1: ["A blue hat."]}))
        assert read([train, test]).splits == ("test",)
        with pytest.raises(DataProblem, match="no split 'train'; there is test"):
            read([train, test], splits=["train"])

    def test_a_source_may_lack_a_split_that_another_has(self, folder, tmp_path):
        more = tmp_path / "more"
        more.mkdir()
        write_jsonl(more, "extra", [record(99, "99.jpg", en=["A hat."])])
        assert read([folder, more], splits=["val"]) == read([folder], splits=["val"])
        with pytest.raises(DataProblem, match="no split nowhere"):
            read([folder, more], splits=["nowhere"])


class TestErrors:
    def test_an_unknown_layout_lists_the_known_ones(self, tmp_path):
        with pytest.raises(DataProblem) as problem:
            read([tmp_path])
        assert all(name in str(problem.value) for name in LAYOUTS)

    def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(DataProblem, match="no such file or folder"):
            read([tmp_path / "nowhere"])

    def test_a_layout_name_that_does_not_exist_lists_the_known_ones(self, folder):
        with pytest.raises(DataProblem, match="no layout 'cocoa'; choose one of jsonl, coco"):
            read([Source(folder, layout="cocoa")])

    def test_no_captions_at_all(self, tmp_path):
        (tmp_path / "val.jsonl").write_text("")
        with pytest.raises(DataProblem, match="no image with captions"):
            read([Source(tmp_path, layout="jsonl")])

    def test_names_cannot_escape_from_the_folder(self, tmp_path):
        (tmp_path / "secret.jpg").write_bytes(b"secret")
        (tmp_path / "images").mkdir()
        store = ImageStore(folders=(tmp_path / "images",))
        assert dict(store.stream(["../secret.jpg", "gone.jpg"])) == {}

    def test_a_damaged_archive_is_named(self, tmp_path):
        path = tmp_path / "val-00.tar"
        path.write_bytes(b"not a tar at all")
        with pytest.raises(DataProblem, match=r"val-00\.tar cannot be read as a tar archive"):
            dict(ImageStore(archives=(path,)).stream(["a.jpg"]))

    def test_a_cut_off_archive_is_named(self, tmp_path):
        whole = tmp_path / "whole.tar.gz"
        write_tar(whole, {f"{n}.jpg": os.urandom(5000) for n in range(5)})
        cut = tmp_path / "val-00.tar.gz"
        cut.write_bytes(whole.read_bytes()[:9000])
        with pytest.raises(DataProblem, match=r"val-00\.tar\.gz is damaged"):
            dict(ImageStore(archives=(cut,)).stream([f"{n}.jpg" for n in range(5)]))

    def test_a_missing_images_folder_is_named(self, tmp_path):
        path = tmp_path / "captions_val.json"
        path.write_text(coco_json({1: ["A hat."]}))
        with pytest.raises(DataProblem, match="no images at"):
            read([Source(path, images=tmp_path / "gone")])


def test_the_same_image_has_one_key_under_all_its_names():
    names = ["COCO_val2014_000000000009.jpg", "000000000009.webp", "val/000000000009.jpg"]
    assert {image_key(name) for name in names} == {"9"}
    assert image_key("12_ab.jpg") == "12_ab"


@pytest.mark.data
@pytest.mark.skipif("CAPSEARCH_DATA" not in os.environ, reason="set CAPSEARCH_DATA to a folder")
def test_every_image_of_a_real_data_set_can_be_read():
    data = read([Path(os.environ["CAPSEARCH_DATA"])])
    for split in data.splits:
        if split != "train":
            images = data.split(split)
            assert sum(1 for _ in images.contents()) == len(images)
