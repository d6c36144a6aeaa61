"""The benchmark on colour images and toy encoders, where every rank can be worked out."""

from dataclasses import replace

import numpy as np
import pytest
from toys import PHOTOS, write_split

from capsearch.benchmarks.query_selection import protocol_of
from capsearch.benchmarks.retrieval import RetrievalOptions, encode_split, evaluate
from capsearch.encoders.datasets.features import FeatureCache, cache_key, load_features
from capsearch.engine.errors import DataProblem
from capsearch.engine.fakes import FakeCatalog, FakeVectorIndex
from capsearch.engine.records import Caption, ImageRecord, Query
from capsearch.engine.search import SearchEngine


@pytest.fixture
def data(tmp_path):
    return write_split(tmp_path, "toys")


@pytest.fixture
def runs(fake_model, data):
    return evaluate(fake_model, encode_split(fake_model, data))


def find(runs, query_lang, mode, caption_lang=None, direction="t2i"):
    (found,) = (
        run
        for run in runs
        if (run.query_lang, run.mode, run.caption_lang, run.direction)
        == (query_lang, mode, caption_lang, direction)
    )
    return found


class TestWhatIsMeasured:
    def test_every_language_mode_and_direction(self, runs):
        assert {(run.query_lang, run.mode, run.caption_lang) for run in runs} == {
            (query, mode, caption)
            for query in ("en", "zh", "ja")
            for mode, captions in {"cm": [None], "cl": "other", "clm": "other"}.items()
            for caption in ([None] if captions != "other" else {"en", "zh", "ja"} - {query})
        }
        assert {run.direction for run in runs} == {"t2i", "i2t"}

    def test_cm_searches_the_whole_split(self, runs):
        run = find(runs, "zh", "cm")
        assert (run.queries, run.collection) == (3, 4)

    def test_cl_and_clm_search_the_photos_described_in_the_caption_language(self, runs):
        for mode in ("cl", "clm"):
            run = find(runs, "en", mode, "zh")
            assert (run.queries, run.collection) == (4, 3)  # four English captions, three photos

    def test_records_are_flat_with_exactly_the_agreed_keys(self, runs):
        (first, *_) = find(runs, "zh", "cm").records()
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
        assert [one["metric"] for one in find(runs, "zh", "cm").records()] == [
            "mrr",
            "r1",
            "r5",
            "r10",
            "medr",
        ]


class TestFigures:
    def test_cm_t2i(self, runs):
        # 红 and 蓝 find their photos first. "蓝色的树" is about photo 2, which scores 0: after
        # blue (1) come three equal zeros, and ties count against us: rank 4.
        assert find(runs, "zh", "cm").figures["mrr"].value == pytest.approx((1 + 1 + 1 / 4) / 3)

    def test_cm_i2t_needs_one_of_several_sentences(self, runs):
        # Every photo has an English sentence with its colour: all first.
        run = find(runs, "en", "cm", direction="i2t")
        assert (run.queries, run.collection) == (4, 5)
        assert run.figures["r1"].value == 1

    def test_cm_i2t_asks_only_with_photos_that_have_a_sentence(self, runs):
        assert find(runs, "ja", "cm", direction="i2t").queries == 1

    def test_cl_t2i(self, runs):
        # "a green tree" against 红车 (0), 蓝海 (0), 蓝树 (1/2): first through the tree. All others
        # are first too, "something red" by 红 alone.
        assert find(runs, "en", "cl", "zh").figures["mrr"].value == 1

    def test_clm_mixes_both_with_the_model_s_weight(self, runs):
        # "蓝色的树" for photo 2, weight .4. CL with (blue sea) 1/2, with (green tree) 1/2;
        # CM with blue 1, with green and white 0: photo 2 comes second of three.
        assert find(runs, "zh", "clm", "en").figures["mrr"].value == pytest.approx(
            (1 + 1 + 1 / 2) / 3
        )

    def test_descriptions_pay_and_photos_too(self, make_model, data):
        dear = make_model(penalty=2.0)  # red things drop below everything else
        runs = evaluate(dear, encode_split(dear, data))
        # 赤い車 finds "a red car" last of the four, 红色的车 its photo too.
        assert find(runs, "ja", "cl", "en").figures["medr"].value == 4
        assert find(runs, "ja", "cm").figures["medr"].value == 4

    def test_a_weight_of_one_is_cl_and_of_zero_is_cm(self, fake_model, data):
        split = encode_split(fake_model, data)
        only_cl = evaluate(fake_model, split, RetrievalOptions(weight=1.0))
        assert find(only_cl, "zh", "clm", "en").figures == find(only_cl, "zh", "cl", "en").figures

    def test_all_descriptions_may_match_better_than_the_first(self, fake_model, tmp_path):
        photos = [
            (("red",), {"en": ["a red car"], "zh": ["红色"]}),
            (("blue",), {"en": ["a house", "the blue sea"], "zh": ["蓝色的海"]}),
        ]
        split = encode_split(fake_model, write_split(tmp_path, "two", photos))
        first = evaluate(fake_model, split)
        every = evaluate(fake_model, split, RetrievalOptions(all_descriptions=True))
        assert find(first, "zh", "cl", "en").figures["r1"].value == 1 / 2
        assert find(every, "zh", "cl", "en").figures["r1"].value == 1


@pytest.mark.parametrize("penalty", [0.0, 0.9])
def test_the_order_is_the_search_engine_s(make_model, data, penalty):
    fake_model = make_model(penalty=penalty)
    split = encode_split(fake_model, data)
    images = [(str(row), 0, vector) for row, vector in enumerate(split.images)]
    english = split.descriptions["en"].first_each()
    captions = [
        (str(row), at + 1, vector)
        for at, (row, vector) in enumerate(zip(english.owner, english.as_documents, strict=True))
    ]
    records = {one: ImageRecord(one, (one,), 1, 1, 1, "PNG") for one, _, _ in images}
    written = [(str(row), Caption("", "en", "test")) for row in english.owner]
    engine = SearchEngine(
        FakeCatalog(records, written),
        FakeVectorIndex(images),
        FakeVectorIndex(captions),
        fake_model.image,
        fake_model.text,
    )
    places = []
    for row, text in enumerate(["红色的车", "蓝色的海", "蓝色的树"]):
        hits = engine.search(Query(text, mode="clm")).hits
        places.append(next(hit.rank for hit in hits if hit.image_id == str(row)))
    expected = find(evaluate(fake_model, split), "zh", "clm", "en").figures["mrr"].value
    assert np.mean(1 / np.array(places)) == pytest.approx(expected)


class TestUnknownWords:
    def test_only_sentences_with_one_are_asked(self, fake_model, tmp_path):
        photos = [
            (("red",), {"en": ["a red car", "whatever this is"]}),
            (("blue",), {"zh": ["蓝"]}),
        ]
        split = encode_split(
            fake_model, write_split(tmp_path, "two", photos), unknown_words_only=True
        )
        assert split.languages == ("en",)
        assert len(split.queries["en"].owner) == 1
        assert len(split.descriptions["en"].owner) == 2  # still there to be matched

    def test_a_split_without_any_says_so(self, fake_model, data):
        with pytest.raises(DataProblem, match="toys has no sentence to ask with"):
            encode_split(fake_model, data, unknown_words_only=True)


class TestProtocols:
    def test_xtd10_asks_with_the_first_caption(self, data):
        photo = data.images[0]
        assert [one.text for one in protocol_of("test-xtd10")(photo, "en")] == ["a red car"]

    def test_cococn_asks_in_chinese_with_what_people_wrote(self, data):
        written = tuple(
            Caption(text, "zh", source)
            for text, source in (("一", "coco-cn"), ("二", "coco-cn-translated"), ("三", "coco-cn"))
        )
        photo = replace(
            data.images[0], captions={"zh": written, "en": data.images[0].captions["en"]}
        )
        assert [one.text for one in protocol_of("test-cococn")(photo, "zh")] == ["一", "三"]
        assert len(protocol_of("test-cococn")(photo, "en")) == 2

    @pytest.mark.parametrize("split", ["test-flickr8k", "val", "anything"])
    def test_others_ask_with_every_caption(self, data, split):
        assert len(protocol_of(split)(data.images[0], "en")) == 2


class TestFeatures:
    def test_the_second_run_embeds_nothing(self, fake_model, data, tmp_path):
        cache = FeatureCache(tmp_path / "cache")
        _, first = load_features(fake_model.image, data, cache)
        _, second = load_features(fake_model.image, data, cache)
        assert fake_model.image.embedded == len(PHOTOS)
        np.testing.assert_array_equal(first, second)

    def test_a_part_helps_the_whole(self, fake_model, data, tmp_path):
        cache = FeatureCache(tmp_path / "cache")
        load_features(fake_model.image, data.first(1), cache)
        load_features(fake_model.image, data, cache)
        assert fake_model.image.embedded == len(PHOTOS)

    def test_other_eyes_have_other_features(self, make_model, data):
        one, other = make_model("lite").image, make_model("large").image
        assert cache_key(one, data) != cache_key(other, data)

    def test_a_broken_cache_file_is_made_anew(self, fake_model, data, tmp_path):
        cache = FeatureCache(tmp_path)
        (tmp_path / f"{cache_key(fake_model.image, data)}.npz").write_bytes(b"PK broken")
        _, features = load_features(fake_model.image, data, cache)
        assert features.shape == (4, 9)

    def test_photos_without_a_readable_image_are_left_out(self, fake_model, tmp_path):
        photos = [*PHOTOS, ((), {"en": ["nothing to see"]})]
        kept, features = load_features(
            fake_model.image, write_split(tmp_path, "five", photos), None
        )
        assert [photo.id for photo in kept.images] == ["0", "1", "2", "3"]
        assert len(features) == 4

    def test_no_readable_image_at_all_is_an_error(self, fake_model, tmp_path):
        data = write_split(tmp_path, "none", [((), {"en": ["nothing"]})])
        with pytest.raises(DataProblem, match="none of the photos has a readable image"):
            load_features(fake_model.image, data, None)

    def test_progress_is_told(self, fake_model, data):
        told = []
        load_features(fake_model.image, data, None, lambda done, of: told.append((done, of)))
        assert told == [(4, 4)]


def test_a_split_in_languages_no_model_reads_is_refused(fake_model, tmp_path):
    data = write_split(tmp_path, "german", [(("red",), {"de": ["ein rotes Auto"]})])
    with pytest.raises(DataProblem, match="german has captions in de, the model reads en, zh, ja"):
        encode_split(fake_model, data)
