"""The parts of indexing that are measured, and what the whole is compared with."""

from pathlib import Path

import numpy as np
import pytest

from capsearch.benchmarks import speed


@pytest.fixture
def files(tmp_path):
    return speed.written(tmp_path, (64, 48), 4)


def test_the_whole_is_compared_with_decoding_and_encoding_and_with_the_peer(
    fake_model, files, monkeypatch
):
    peer = speed.rate("indexing", "ViT", [4], [1.0])
    monkeypatch.setattr(speed, "time_peer", lambda files, label: peer)
    lines = [*speed.time_indexing(fake_model, files, "64 x 48", repeats=1)]
    names = [one.name for one in lines]
    assert names == [
        "64 x 48: decoded, fake",
        "64 x 48: encoded, fake",
        "64 x 48: read and stored, fake",
        "64 x 48: decoded, then encoded",
        "64 x 48: indexed, fake",
        "ViT",
        "64 x 48: indexed, fake, to the peer",
    ]
    assert lines[4].beside == names[3] and lines[6].ratio == lines[6].p50 / peer.p50


def test_the_peer_encodes_every_file_in_batches(files):
    sizes = []
    paths = [Path(one.path) for one in files]
    speed.encode_files(lambda batch: sizes.append(batch.shape), paths, 3)
    assert sizes == [(3, 3, 224, 224), (1, 3, 224, 224)]


def test_the_peer_gives_a_vector_for_each_image():
    pytest.importorskip("torch")
    assert speed.vit_b32()(np.zeros((2, 3, 224, 224), np.float32)).shape == (2, 512)
