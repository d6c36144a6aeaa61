"""The activation cache: computed once, resumable, without unreadable images."""

import numpy as np
import pytest

pytest.importorskip("torch")

from capsearch.encoders.data import features
from capsearch.encoders.data.archives import ImageStore
from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage
from capsearch.encoders.images.preprocess import squash
from capsearch.encoders.train import activations
from capsearch.encoders.train.activations import load_activations, load_feature_maps
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import ImageFeatures


class CountingBlocks:
    """Lower blocks that count images; activations and features are the mean colours."""

    name = "toy"

    def __init__(self):
        self.encoded = 0

    def preprocess(self, image):
        return squash(image, 8)

    def activations(self, pixels):
        self.encoded += len(pixels)
        mean = np.stack(pixels).mean((1, 2)).astype(np.float32)
        return mean[:, None, None].astype(np.float16), mean


@pytest.fixture
def data(tmp_path, image):
    colours = ("red", "blue", "green", "yellow", "white")
    for number, colour in enumerate(colours):
        image(tmp_path / "images" / f"{number}.png", colour)
    images = tuple(CaptionedImage(str(n), "train", f"{n}.png", {}) for n in range(len(colours)))
    return CaptionDataset(images, ImageStore(folders=(tmp_path / "images",)))


@pytest.fixture
def other(tmp_path, image):
    """Two images elsewhere, with ids that `data` has too."""
    for number, colour in enumerate(("black", "white")):
        image(tmp_path / "elsewhere" / f"{number}.png", colour)
    images = tuple(CaptionedImage(str(n), "train", f"{n}.png", {}) for n in range(2))
    return CaptionDataset(images, ImageStore(folders=(tmp_path / "elsewhere",)))


class TestActivations:
    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch):
        monkeypatch.setattr(features, "BATCH", 2)

    def test_are_computed_once(self, data, tmp_path):
        lower, reports = CountingBlocks(), []
        first = load_activations(lower, [data], tmp_path / "c", lambda *n: reports.append(n))
        again = load_activations(lower, [data], tmp_path / "c")
        assert lower.encoded == 5
        assert reports == [(2, 5), (4, 5), (5, 5)]
        assert first.values.shape == (5, 1, 1, 3)
        np.testing.assert_array_equal(first.values, again.values)
        np.testing.assert_array_equal(first.features, again.features)

    def test_an_interrupted_run_continues_with_the_next_batch(self, data, tmp_path):
        class Interrupted(CountingBlocks):
            def activations(self, pixels):
                if self.encoded:
                    raise KeyboardInterrupt
                return super().activations(pixels)

        with pytest.raises(KeyboardInterrupt):
            load_activations(Interrupted(), [data], tmp_path / "c")
        lower = CountingBlocks()
        resumed = load_activations(lower, [data], tmp_path / "c")
        assert lower.encoded == 3
        whole = load_activations(CountingBlocks(), [data], tmp_path / "other")
        np.testing.assert_array_equal(resumed.values, whole.values)
        np.testing.assert_array_equal(resumed.features, whole.features)

    def test_an_unreadable_image_is_skipped(self, data, tmp_path):
        (tmp_path / "images" / "1.png").write_bytes(b"no image")
        found = load_activations(CountingBlocks(), [data], tmp_path / "c")
        assert [image.id for image in found.data.images] == ["0", "2", "3", "4"]
        assert len(found.values) == len(found.features) == 4
        whole = load_activations(CountingBlocks(), [data.only(found.data.images)], tmp_path / "o")
        np.testing.assert_array_equal(found.values, whole.values)

    def test_parts_with_the_same_ids_do_not_collide(self, data, other, tmp_path):
        lower = CountingBlocks()
        found = load_activations(lower, [data, other], tmp_path / "c")
        assert lower.encoded == 5 + 2
        assert [image.id for image in found.data.images] == [*"01234", *"01"]
        each = [load_activations(CountingBlocks(), [one], tmp_path / "o") for one in (data, other)]
        np.testing.assert_array_equal(found.values, np.concatenate([one.values for one in each]))
        assert found.rows.tolist() == list(range(7))
        load_activations(lower, [data, other], tmp_path / "c")
        assert lower.encoded == 7

    def test_an_unreadable_image_of_one_part_is_skipped_there_only(self, data, other, tmp_path):
        (tmp_path / "images" / "1.png").write_bytes(b"no image")
        found = load_activations(CountingBlocks(), [data, other], tmp_path / "c")
        assert [image.id for image in found.data.images] == [*"0234", *"01"]
        assert found.rows.tolist() == [0, 2, 3, 4, 5, 6]
        whole = load_activations(CountingBlocks(), [other], tmp_path / "o")
        np.testing.assert_array_equal(found.features[4:], whole.features)

    def test_no_readable_image_is_a_problem(self, data, tmp_path):
        for path in (tmp_path / "images").iterdir():
            path.unlink()
        with pytest.raises(DataProblem, match="none of the images can be read"):
            load_activations(CountingBlocks(), [data], tmp_path / "c")

    def test_other_images_have_another_cache(self, data):
        keys = {activations._key(CountingBlocks(), part.images) for part in (data, data.first(2))}
        assert len(keys) == 2


class TestFeatureMaps:
    class Backbone(CountingBlocks):
        """A backbone with one cell, which counts images."""

        digest = "0"

        def feature_maps(self, pixels):
            grid, pooled = self.activations(pixels)
            return ImageFeatures(pooled, grid[:, 0])

    def test_of_a_part_are_those_of_the_whole_split(self, data, tmp_path):
        backbone, part = self.Backbone(), data.only([data.images[3], data.images[1]])
        whole = load_feature_maps(backbone, data, tmp_path / "c")
        assert backbone.encoded == len(data)
        found = load_feature_maps(backbone, part, tmp_path / "c", whole=data)
        assert backbone.encoded == len(data) and found.data == part
        assert np.array_equal(found.grid, whole.grid[[3, 1]])
        assert np.array_equal(found.pooled, whole.pooled[[3, 1]])

    def test_of_a_part_are_computed_alone_where_the_split_is_not_there(self, data, tmp_path):
        backbone = self.Backbone()
        load_feature_maps(backbone, data.first(2), tmp_path / "c", whole=data)
        assert backbone.encoded == 2
