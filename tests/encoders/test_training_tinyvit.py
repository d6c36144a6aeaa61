"""TinyViT: its geometry, its windows, its authors' weights, and its export."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from small_networks import noise  # noqa: E402

from capsearch.encoders.models import install, model_folder, registry  # noqa: E402
from capsearch.encoders.train import networks  # noqa: E402
from capsearch.encoders.train.backbone import LowerBlocks, upper_blocks_of  # noqa: E402
from capsearch.encoders.train.export import (  # noqa: E402
    export_backbone,
    load_upper_blocks,
)
from capsearch.engine.errors import TrainingProblem  # noqa: E402

SIZE = networks.TINYVIT_SIZE
ZEROS, ONES = torch.zeros(networks.FEATURES), torch.ones(networks.FEATURES)


@pytest.fixture
def small(monkeypatch):
    """Random weights; one narrow block a stage: convolutions, then windows of 7, 14 and 7 cells."""
    monkeypatch.setattr(networks, "_CONVOLUTIONAL", (8, 1))
    stages = ((8, 16, 2, 7, 1), (16, 16, 2, 14, 1), (16, 24, 2, 7, 1))
    monkeypatch.setattr(networks, "_TINYVIT_STAGES", stages)
    architecture = replace(networks.NETWORKS["tinyvit"], first_trained=3)
    monkeypatch.setitem(networks.NETWORKS, "tinyvit", architecture)
    return random_network(0)


def random_network(seed):
    torch.manual_seed(seed)
    made = networks.TinyViT().eval().requires_grad_(False)
    for part in made.modules():
        if isinstance(part, torch.nn.Conv2d | torch.nn.Linear):
            torch.nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        elif isinstance(part, torch.nn.LayerNorm):  # the exporter merges equal ones
            part.weight.uniform_(0.5, 1.5)
            part.bias.normal_()
        elif isinstance(part, networks.Attention):
            part.biases.normal_()
    return made


def carriers_graph(network, path):
    """A network's weights as the carrier names them: products transposed, convolutions in order."""
    named = {}
    convolutions = [
        module
        for module in (*network.stem.modules(), *network.blocks.modules())
        if isinstance(module, torch.nn.Conv2d)
    ]
    for number, module in enumerate(convolutions):
        named[f"onnx::Conv_{2 * number}"] = module.weight
        named[f"onnx::Conv_{2 * number + 1}"] = module.bias
    for prefix, block in networks._window_blocks(network):
        named[f"{prefix}.attn.attention_biases"] = block.attn.biases
        for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            layer = block.get_submodule(name)
            named[f"onnx::MatMul_{len(named)}"] = layer.weight.T
            named[f"{prefix}.{name}.bias"] = layer.bias
        for name in ("attn.norm", "mlp.norm"):
            named[f"{prefix}.{name}.weight"] = block.get_submodule(name).weight
            named[f"{prefix}.{name}.bias"] = block.get_submodule(name).bias
    weights = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(value.numpy()), name)
        for name, value in named.items()
    ]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], weights)), path)


def lower_half(network):
    """All that a network has but its head."""
    return {name: value for name, value in network.state_dict().items() if "head" not in name}


def test_the_activations_that_are_cached_and_the_features():
    architecture = networks.network("tinyvit")
    with torch.device("meta"):
        net, start = networks.TinyViT(), architecture.first_trained
        lower = net.lower(
            torch.zeros(1, 3, architecture.input_size, architecture.input_size), start
        )
        assert net.feature_map(lower, start).shape == (1, architecture.features, 7, 7)
    assert len(net.blocks) == 2 + (1 + 2) + (1 + 6) + (1 + 2)
    assert lower.shape == (1, 160, 14, 14)  # 14 * 14 * 160 * 2 B = 63 kB
    parameters = sum(one.numel() for one in (*net.stem.parameters(), *net.blocks.parameters()))
    assert parameters == pytest.approx(5e6, rel=0.05)


def test_pixels_have_imagenets_mean_and_deviation(small):
    pixels = torch.tensor([[[[0, 128, 255]]]], dtype=torch.uint8)
    expected = [-0.485 / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert small.scale(pixels).flatten().tolist() == pytest.approx(expected)


def test_a_network_cut_between_two_blocks_is_the_whole_network(small):
    pixels = small.scale(torch.from_numpy(noise(2, SIZE)))
    whole = small(pixels)
    assert whole.shape == (2, networks.FEATURES)
    for start in range(len(small.blocks) + 1):
        torch.testing.assert_close(small.upper(small.lower(pixels, start), start), whole)


def test_attention_stays_inside_its_window(small):
    block = small.blocks[2]  # windows of 7 cells
    cells = torch.rand(1, 28, 28, 16)
    changed = cells.clone()
    changed[0, 0, 0, 0] += 1.0
    differs = (block._attended(cells) != block._attended(changed)).any(-1)[0]
    assert differs[:7, :7].all()
    assert differs.sum() == 7 * 7


def test_a_bias_belongs_to_a_distance(small):
    attention = small.blocks[2].attn
    distances = attention.distances.view(7, 7, 7, 7)  # row, column of the one cell and the other
    assert attention.biases.shape == (2, 7 * 7)
    assert distances[0, 0, 2, 3] == distances[2, 3, 0, 0] == distances[4, 6, 6, 3]
    assert distances[0, 0, 2, 3] != distances[0, 0, 3, 2]


def test_all_weights_of_the_trained_half_are_trained(small):
    lower = LowerBlocks("tinyvit", small)
    upper = upper_blocks_of(lower, ZEROS, ONES).train()
    upper(torch.rand(32, 28, 28, 16)).square().mean().backward()
    for name, value in upper.named_parameters():
        assert value.grad is not None and value.grad.abs().sum() > 0, name
    assert small.stem[0].weight.grad is None


class TestPretrainedWeights:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path))
        return tmp_path / "tinyvit"

    def write(self, network, folder, source):
        folder.mkdir()
        carriers_graph(network, folder / "backbone.onnx")
        card = {"kind": "backbone", "name": "tinyvit", "source": source}
        model_folder.write_card(folder, card)

    def test_are_copied_by_name_and_order(self, small, tmp_path):
        carriers_graph(small, tmp_path / "graph.onnx")
        other = random_network(1)
        networks.copy_weights(other, tmp_path / "graph.onnx")
        for name, value in lower_half(other).items():
            assert torch.equal(value, lower_half(small)[name]), name

    def test_come_from_the_installed_backbone(self, small, folder):
        sha256 = install.CARRIERS["tinyvit"].sha256
        self.write(small, folder, f"somewhere, sha256 {sha256}")
        torch.manual_seed(3)
        drawn = torch.rand(1)
        torch.manual_seed(3)
        loaded = networks.load_tinyvit()
        assert torch.equal(torch.rand(1), drawn)  # the callers' random numbers stay the same
        for name, value in lower_half(loaded).items():
            assert torch.equal(value, lower_half(small)[name]), name
        # Cached features depend on the head, so it is the same in every run.
        assert torch.equal(loaded.head.weight, networks.load_tinyvit().head.weight)

    def test_that_are_not_installed_are_named(self, folder):
        with pytest.raises(TrainingProblem, match="run `capsearch models install tinyvit`"):
            networks.load_tinyvit()

    def test_of_another_model_with_that_name_are_refused(self, small, folder):
        self.write(small, folder, "trained here")
        with pytest.raises(TrainingProblem, match=r"tinyvit is another model; rename it, and run"):
            networks.load_tinyvit()


def test_a_served_network_is_torchs_and_its_weights_are_read_back(small, tmp_path):
    export_backbone(small, SIZE, ZEROS, ONES, tmp_path, {"name": "small"})
    images = noise(3, SIZE)
    halved = deepcopy(small).half().float()
    expected = halved(halved.scale(torch.from_numpy(images))).numpy()
    found = registry.load_backbone(str(tmp_path)).features(list(images))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-2)
    assert expected.std(0).max() > 0.02  # the images differ

    lower = LowerBlocks("tinyvit", random_network(1))
    upper = load_upper_blocks(tmp_path, lower)
    stored = halved.blocks[3:].state_dict()
    small_ones = {name for name, value in stored.items() if value.numel() < 64}  # float32
    for name, value in upper.blocks.state_dict().items():
        if name not in small_ones:
            assert torch.equal(value, stored[name]), name
    values, features = lower.activations(list(images))
    assert values.shape == (3, 28, 28, 16)  # before block 3
    assert features.shape == (3, networks.FEATURES)
