"""Object classes and tags as columns of labels."""

import pytest

pytest.importorskip("torch")

from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage
from capsearch.encoders.train.trainer import labels_of


def captioned(number, objects=(), tags=()):
    return CaptionedImage(str(number), "train", f"{number}.png", {}, objects, tags)


def test_a_label_is_one_that_thirty_images_have():
    images = [captioned(n, objects=("cat",) if n < 30 else ("dog",)) for n in range(40)]
    labels = labels_of(CaptionDataset(tuple(images)))
    assert labels.values.sum() == 30
    assert labels.values.shape == (40, 1)  # ten dogs are too few
    assert labels.known.all()


def test_an_image_without_tags_has_unknown_tags():
    images = [captioned(n, objects=("cat",), tags=("猫",) * (n < 30)) for n in range(31)]
    labels = labels_of(CaptionDataset(tuple(images)))
    assert labels.known[:, 0].all()
    assert labels.known[:, 1].tolist() == [True] * 30 + [False]


def test_data_without_frequent_labels_has_none():
    assert labels_of(CaptionDataset((captioned(1), captioned(2, ("cat",))))) is None
