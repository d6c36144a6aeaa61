"""Names against labelled colour images, where every precision can be computed by hand."""

import gzip
import io
import itertools
import json
import tarfile

import numpy as np
import pytest
from toys import png

from capsearch.benchmarks import names as name_queries
from capsearch.benchmarks.names import at_most, evaluate
from capsearch.benchmarks.settings import NamesOptions
from capsearch.encoders.calibrate.collection import encode_labelled
from capsearch.encoders.data.dataset import read_labelled
from capsearch.encoders.data.labels import split_of_photo
from capsearch.encoders.data.templates import phrases
from capsearch.encoders.models import registry
from capsearch.encoders.text.concepts import all_concepts, by_id
from capsearch.encoders.text.languages import simplify
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import LANGUAGES
from capsearch.ui.cli.main import main

# (label, the colour of the photograph): three reds, one of them by a narrower label, two blues, one
# of which is shown in red, and two greens.
PHOTOS = [
    ("red", "red"),
    ("red", "red"),
    ("dark red", "red"),
    ("blue", "blue"),
    ("blue", "red"),
    ("green", "green"),
    ("green", "green"),
]


def ids_of_test_photos(concept):
    ids = (f"photo-{number}" for number in itertools.count())
    return (one for one in ids if split_of_photo(one, [concept]) == "test")


def write_set(folder, photos=PHOTOS, name="colours"):
    ids = ids_of_test_photos("red")
    lines = []
    with tarfile.open(folder / f"{name}-00.tar", "w") as archive:
        for number, (label, colour) in enumerate(photos):
            content = png(colour) if colour else b"no image"
            info = tarfile.TarInfo(f"{name}-{number}.png")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            record = {"id": next(ids), "file": info.name, "set": name, "label": label}
            lines.append(json.dumps(record))
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return read_labelled([folder]).split("test")


def find(rows, language, group):
    (row,) = (one for one in rows if (one.query_lang, one.group) == (language, group))
    return row


class TestFigures:
    def test_a_narrower_label_is_relevant_and_depth_divides(self, fake_model, tmp_path):
        pool = encode_labelled(fake_model, write_set(tmp_path))
        row = find(evaluate(fake_model, pool, NamesOptions(min_photos=2)), "en", "trained on")
        # red: all three within the first five, after the blue label that is shown in red, since
        # ties count against us. blue: the first hit, its red image after all others. green: both.
        assert row.concepts == 3
        assert row.figures["p5"].value == pytest.approx((3 / 5 + 1 / 5 + 2 / 5) / 3)
        assert row.figures["mrr"].value == pytest.approx((1 / 2 + 1 + 1) / 3)
        assert np.isnan(row.figures["p10"].value)  # no concept has ten photographs

    def test_p10_is_of_the_concepts_with_ten_photographs(self, fake_model, tmp_path):
        photos = [("red", "red")] * 9 + [("red", "blue")] + [("green", "green")] * 5
        pool = encode_labelled(fake_model, write_set(tmp_path, photos))
        row = find(evaluate(fake_model, pool), "en", "trained on")
        assert row.concepts == 2
        assert row.figures["p10"].value == pytest.approx(9 / 10)

    def test_concepts_with_too_few_photographs_are_not_asked_for(self, fake_model, tmp_path):
        pool = encode_labelled(fake_model, write_set(tmp_path))
        assert (
            find(
                evaluate(fake_model, pool, NamesOptions(min_photos=3)), "zh", "trained on"
            ).concepts
            == 1
        )
        with pytest.raises(DataProblem, match="--min-photos"):
            evaluate(fake_model, pool, NamesOptions(min_photos=50))

    def test_groups_are_of_labels_of_broader_concepts_and_of_each_set(self, fake_model, tmp_path):
        photos = [("tuba", "red"), ("piano", "blue")]
        pool = encode_labelled(fake_model, write_set(tmp_path, photos, "instruments30"))
        rows = evaluate(fake_model, pool, NamesOptions(min_photos=1))
        assert find(rows, "ja", "never trained on").concepts == 1  # tuba
        assert find(rows, "ja", "instruments30").concepts == 2
        assert find(rows, "ja", "broader").concepts >= 2  # musical instrument and kinds of it

    def test_other_queries_are_compared_with_the_commonest_name(self, fake_model, tmp_path):
        pool = encode_labelled(fake_model, write_set(tmp_path))
        rows = evaluate(fake_model, pool, NamesOptions(queries="templates", min_photos=2))
        assert find(rows, "ja", "trained on").figures["same10"].value == 1
        rows = evaluate(fake_model, pool, NamesOptions(min_photos=2))
        assert np.isnan(find(rows, "ja", "trained on").figures["same10"].value)

    def test_the_first_photographs_of_each_label(self, tmp_path):
        kept = at_most(write_set(tmp_path), 1).images
        assert [one.concepts for one in kept] == [("red",), ("dark-red",), ("blue",), ("green",)]


class TestQueries:
    def test_every_kind_of_query_has_texts_in_three_languages(self):
        for kind in name_queries.QUERIES:
            for language in LANGUAGES:
                concepts = {one: by_id(one) for one in ("violin", "dolphin", "t-shirt")}
                assert all(text for _, text in name_queries.asked(concepts, language, kind))

    def test_phrases_other_than_one_are_not_those_of_training(self):
        for language, of_language in name_queries.PHRASES.items():
            assert set(of_language[1:]).isdisjoint(phrases("request")[language])

    def test_spellings_differ_from_the_name(self):
        assert name_queries.spellings(by_id("violin"), "en") == (
            "violins",
            "VIOLIN",
            "ｖｉｏｌｉｎ",
        )
        assert name_queries.spellings(by_id("dragon-fruit"), "zh") == ("火龍果",)
        assert name_queries.spellings(by_id("violin"), "ja") == ("ﾊﾞｲｵﾘﾝ", "ハ゛イオリン")

    def test_traditional_spellings_are_simplified_to_the_name(self):
        names = {one.name("zh") for one in all_concepts().values()}
        others = {one for one in names if simplify(name_queries.traditional(one)) != simplify(one)}
        # OpenCC writes 揹, 菓 and 伕, which it leaves alone on the way back.
        assert others == {"背着", "背带", "背带裤", "婴儿背带", "黄果树瀑布", "人力车夫"}

    def test_the_v_row(self):
        assert name_queries.without_v("ヴァイオリンとヴェール") == "バイオリンとベール"


class TestCommand:
    @pytest.fixture
    def run(self, tmp_path, fake_model, monkeypatch):
        monkeypatch.setattr(registry, "load", lambda name=None: fake_model)
        write_set(tmp_path, [*PHOTOS, ("green", "")])
        fixed = ["--data", str(tmp_path), "--cache", str(tmp_path / "cache"), "--min-photos", "2"]
        return lambda *more: main(["bench", "names", *fixed, *more])

    def test_json_is_a_list_of_flat_records(self, run, capsys):
        assert run("--json") == 0
        out, err = capsys.readouterr()
        records = json.loads(out)
        assert {one["metric"] for one in records} == {"p5", "p10", "mrr", "same10"}
        assert {one["query_lang"] for one in records} == set(LANGUAGES)
        assert records[0]["collection"] == len(PHOTOS)
        assert "test: 8 photographs, model fake" in err
        assert "warning: 1 images could not be read" in err

    def test_a_table_with_groups(self, run, capsys):
        assert run("--queries", "spellings", "--per-label", "2") == 0
        out = capsys.readouterr().out
        assert "spellings over" in out and "trained on" in out and "colours" in out

    def test_a_split_without_photographs_is_an_error(self, run, capsys):
        assert run("--split", "val") == 2
        assert "no split 'val'; there is test" in capsys.readouterr().err

    def test_data_without_labels_is_an_error(self, tmp_path, capsys, monkeypatch, fake_model):
        monkeypatch.setattr(registry, "load", lambda name=None: fake_model)
        record = {"id": 1, "file": "1.png", "captions": {"en": [{"text": "x", "source": "y"}]}}
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(record).encode()))
        assert main(["bench", "names", "--data", str(tmp_path)]) == 2
        assert "no image with a known label" in capsys.readouterr().err

    def test_the_command_accepts_every_kind_of_query(self):
        from capsearch.ui.cli.bench import names

        (option,) = (one for one in names.params if one.name == "queries")
        assert list(option.type.choices) == list(name_queries.QUERIES)
