"""The benchmark on colour images and toy encoders, where every rank can be computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from toys import IMAGES, write_split

from capsearch.benchmarks.retrieval import encode_split, evaluate, protocol_of
from capsearch.benchmarks.settings import RetrievalOptions
from capsearch.encoders.data import features as features_module
from capsearch.encoders.data.features import FeatureCache, cache_key, load_features
from capsearch.engine.errors import DataProblem
from capsearch.engine.fakes import FakeBackend
from capsearch.engine.query import Query
from capsearch.engine.records import Caption, Document, ImageRecord
from capsearch.engine.search import SearchEngine


@pytest.fixture
def data(tmp_path):
    return write_split(tmp_path, "toys")


@pytest.fixture
def rows(fake_model, data):
    return evaluate(fake_model, encode_split(fake_model, data))


def find(rows, query_lang, mode, caption_lang=None, direction="t2i"):
    (found,) = (
        row
        for row in rows
        if (row.query_lang, row.mode, row.caption_lang, row.direction)
        == (query_lang, mode, caption_lang, direction)
    )
    return found


class TestRows:
    def test_every_language_mode_and_direction(self, rows):
        assert {(row.query_lang, row.mode, row.caption_lang) for row in rows} == {
            (query, mode, caption)
            for query in ("en", "zh", "ja")
            for mode, captions in {"cm": [None], "cl": "other", "clm": "other"}.items()
            for caption in ([None] if captions != "other" else {"en", "zh", "ja"} - {query})
        }
        assert {row.direction for row in rows} == {"t2i", "i2t"}

    def test_cm_searches_the_whole_split(self, rows):
        row = find(rows, "zh", "cm")
        assert (row.queries, row.collection) == (3, 4)

    def test_cl_and_clm_search_the_images_described_in_the_caption_language(self, rows):
        for mode in ("cl", "clm"):
            row = find(rows, "en", mode, "zh")
            assert (row.queries, row.collection) == (4, 3)  # four English captions, three images

    def test_records_are_flat_with_exactly_the_agreed_keys(self, rows):
        (first, *_) = find(rows, "zh", "cm").records()
        assert list(first) == [
            "split",
            "query_lang",
            "mode",
            "caption_lang",
            "direction",
            "metric",
            "value",
            "low",
            "high",
        ]
        assert first["split"] == "toys" and first["caption_lang"] is None
        assert [one["metric"] for one in find(rows, "zh", "cm").records()] == [
            "mrr",
            "r1",
            "r5",
            "r10",
            "medr",
        ]


class TestFigures:
    def test_cm_t2i(self, rows):
        # 红 and 蓝 find their images first. "蓝色的树" is about image 2, which scores 0: after
        # blue (1) come three equal zeros, and ties count against us: rank 4.
        assert find(rows, "zh", "cm").figures["mrr"].value == pytest.approx((1 + 1 + 1 / 4) / 3)

    def test_cm_i2t_needs_one_of_several_captions(self, rows):
        # Every image has an English caption with its colour: all are first.
        row = find(rows, "en", "cm", direction="i2t")
        assert (row.queries, row.collection) == (4, 5)
        assert row.figures["r1"].value == 1

    def test_cm_i2t_uses_only_images_that_have_a_caption(self, rows):
        assert find(rows, "ja", "cm", direction="i2t").queries == 1

    def test_cl_t2i(self, rows):
        # "a green tree" against 红车 (0), 蓝海 (0), 蓝树 (1/2): first through the tree. All others
        # are first too, "something red" by 红 alone.
        assert find(rows, "en", "cl", "zh").figures["mrr"].value == 1

    def test_clm_mixes_both_with_the_model_s_weight(self, rows):
        # "蓝色的树" for image 2, weight .4. CL with (blue sea) 1/2, with (green tree) 1/2;
        # CM with blue 1, with green and white 0: image 2 comes second of three.
        assert find(rows, "zh", "clm", "en").figures["mrr"].value == pytest.approx(
            (1 + 1 + 1 / 2) / 3
        )

    def test_hubness_penalties_apply_to_descriptions_and_images(self, make_model, data):
        model = make_model(penalty=2.0)  # everything red scores below everything else
        rows = evaluate(model, encode_split(model, data))
        # 赤い車 finds "a red car" last of the four, 红色的车 its image too.
        assert find(rows, "ja", "cl", "en").figures["medr"].value == 4
        assert find(rows, "ja", "cm").figures["medr"].value == 4

    def test_a_weight_of_one_is_cl_and_of_zero_is_cm(self, fake_model, data):
        split = encode_split(fake_model, data)
        only_cl = evaluate(fake_model, split, RetrievalOptions(clm_weight=1.0))
        assert find(only_cl, "zh", "clm", "en").figures == find(only_cl, "zh", "cl", "en").figures

    def test_all_descriptions_may_match_better_than_the_first(self, fake_model, tmp_path):
        images = [
            (("red",), {"en": ["a red car"], "zh": ["红色"]}),
            (("blue",), {"en": ["a house", "the blue sea"], "zh": ["蓝色的海"]}),
        ]
        split = encode_split(fake_model, write_split(tmp_path, "two", images))
        first = evaluate(fake_model, split)
        every = evaluate(fake_model, split, RetrievalOptions(descriptions="all"))
        assert find(first, "zh", "cl", "en").figures["r1"].value == 1 / 2
        assert find(every, "zh", "cl", "en").figures["r1"].value == 1


@pytest.mark.parametrize("penalty", [0.0, 0.9])
def test_the_order_is_the_search_engine_s(make_model, data, penalty):
    fake_model = make_model(penalty=penalty)
    split = encode_split(fake_model, data)
    english = split.descriptions["en"].first_of_each()
    described = Caption("", "en", "test")
    images = {str(row): vector for row, vector in enumerate(split.images)}
    backend = FakeBackend(
        documents={one: Document(ImageRecord(one, (one,), 1, 1, 1, "PNG")) for one in images},
        vectors=images,
        captions=[
            (str(row), described, vector)
            for row, vector in zip(english.image_rows, english.documents, strict=True)
        ],
    )
    engine = SearchEngine(backend, fake_model.image, fake_model.text)
    places = []
    for row, text in enumerate(["红色的车", "蓝色的海", "蓝色的树"]):
        hits = engine.search(Query(text, mode="clm")).hits
        places.append(next(hit.rank for hit in hits if hit.image_id == str(row)))
    expected = find(evaluate(fake_model, split), "zh", "clm", "en").figures["mrr"].value
    assert np.mean(1 / np.array(places)) == pytest.approx(expected)


class TestUnknownWords:
    def test_only_captions_with_one_are_queries(self, fake_model, tmp_path):
        images = [
            (("red",), {"en": ["a red car", "whatever this is"]}),
            (("blue",), {"zh": ["蓝"]}),
        ]
        split = encode_split(
            fake_model, write_split(tmp_path, "two", images), unknown_words_only=True
        )
        assert split.languages == ("en",)
        assert len(split.queries["en"].image_rows) == 1
        assert len(split.descriptions["en"].image_rows) == 2  # descriptions stay complete

    def test_a_split_without_any_is_an_error(self, fake_model, data):
        with pytest.raises(DataProblem, match="toys has no captions to use as queries"):
            encode_split(fake_model, data, unknown_words_only=True)


class TestProtocols:
    def test_xtd10_queries_are_first_captions(self, data):
        image = data.images[0]
        assert [one.text for one in protocol_of("test-xtd10")(image, "en")] == ["a red car"]

    def test_cococn_queries_in_chinese_are_written_by_people(self, data):
        written = tuple(
            Caption(text, "zh", source)
            for text, source in (("一", "coco-cn"), ("二", "coco-cn-translated"), ("三", "coco-cn"))
        )
        image = replace(
            data.images[0], captions={"zh": written, "en": data.images[0].captions["en"]}
        )
        assert [one.text for one in protocol_of("test-cococn")(image, "zh")] == ["一", "三"]
        assert len(protocol_of("test-cococn")(image, "en")) == 2

    @pytest.mark.parametrize("split", ["test-flickr8k", "val", "anything"])
    def test_queries_of_other_splits_are_every_caption(self, data, split):
        assert len(protocol_of(split)(data.images[0], "en")) == 2


class TestFeatures:
    def test_a_second_run_encodes_no_image_again(self, fake_model, data, tmp_path):
        cache = FeatureCache(tmp_path / "cache")
        _, first = load_features(fake_model.image, data, cache)
        _, second = load_features(fake_model.image, data, cache)
        assert fake_model.image.embedded == len(IMAGES)
        np.testing.assert_array_equal(first, second)

    def test_features_of_a_part_are_reused_for_the_whole(self, fake_model, data, tmp_path):
        cache = FeatureCache(tmp_path / "cache")
        load_features(fake_model.image, data.first(1), cache)
        load_features(fake_model.image, data, cache)
        assert fake_model.image.embedded == len(IMAGES)

    def test_another_backbone_has_another_cache_key(self, make_model, data):
        one, other = make_model("lite").image, make_model("large").image
        assert cache_key(one, data) != cache_key(other, data)

    def test_a_broken_cache_file_is_rebuilt(self, fake_model, data, tmp_path):
        cache = FeatureCache(tmp_path)
        (tmp_path / f"{cache_key(fake_model.image, data)}.npz").write_bytes(b"PK broken")
        _, features = load_features(fake_model.image, data, cache)
        assert features.shape == (4, 9)

    def test_unreadable_images_are_left_out(self, fake_model, tmp_path):
        images = [*IMAGES, ((), {"en": ["unreadable"]})]
        readable, features = load_features(
            fake_model.image, write_split(tmp_path, "five", images), None
        )
        assert [image.id for image in readable.images] == ["0", "1", "2", "3"]
        assert len(features) == 4

    def test_no_readable_image_at_all_is_an_error(self, fake_model, tmp_path):
        data = write_split(tmp_path, "none", [((), {"en": ["nothing"]})])
        with pytest.raises(DataProblem, match="none of the images can be read"):
            load_features(fake_model.image, data, None)

    def test_an_interrupted_run_keeps_what_is_done(self, fake_model, data, tmp_path, monkeypatch):
        def interrupt(done, of):
            raise KeyboardInterrupt

        monkeypatch.setattr(features_module, "BATCH", 1)
        cache = FeatureCache(tmp_path / "cache")
        with pytest.raises(KeyboardInterrupt):
            load_features(fake_model.image, data, cache, interrupt)
        load_features(fake_model.image, data, cache)
        assert fake_model.image.embedded == len(IMAGES)

    def test_progress_is_reported(self, fake_model, data):
        reported = []
        load_features(fake_model.image, data, None, lambda done, of: reported.append((done, of)))
        assert reported == [(4, 4)]


def test_a_split_in_languages_no_model_reads_is_refused(fake_model, tmp_path):
    data = write_split(tmp_path, "german", [(("red",), {"de": ["ein rotes Auto"]})])
    with pytest.raises(DataProblem, match="german has captions in de, the model reads en, zh, ja"):
        encode_split(fake_model, data)
