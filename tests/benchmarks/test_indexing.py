"""The parts of indexing that are measured, and what the whole is compared with."""

import pytest

from capsearch.benchmarks import indexing


@pytest.fixture
def files(tmp_path):
    return indexing.written(tmp_path, (64, 48), 4)


def test_the_whole_is_compared_with_decoding_and_encoding_and_with_the_peer(
    fake_model, files, monkeypatch
):
    peer = indexing.rate("indexing", "ViT", [4], [1.0])
    monkeypatch.setattr(indexing, "time_peer", lambda files, label: peer)
    lines = [*indexing.time_indexing(fake_model, files, "64 x 48", repeats=1)]
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
    pytest.importorskip("torch")
    from capsearch.benchmarks import indexing as vit

    loop, sizes = vit.TorchLoop(), []
    loop._network = lambda batch: sizes.append(tuple(batch.shape))
    loop.encode([indexing.Path(one.path) for one in files], 3)
    assert sizes == [(3, 3, 224, 224), (1, 3, 224, 224)]
