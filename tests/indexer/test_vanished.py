"""A folder that has suddenly lost all its images is asked about, not obeyed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from index_contents import paths
from PIL import Image

from capsearch.engine.errors import RootUnavailable
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.roots import MANY


def fill(folder: Path, count: int, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for n in range(count):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(folder / f"{n}.png")
    return folder


@pytest.fixture
def root(collection, tmp_path):
    """A root with a sub-folder of many images and one of a few."""
    fill(tmp_path / "p" / "card", MANY, 1)
    fill(tmp_path / "p" / "few", 3, 2)
    index(collection, [tmp_path / "p"])
    return tmp_path / "p"


def test_an_emptied_folder_of_many_images_is_not_obeyed(collection, root):
    """Issue 11, 2: an empty mount point below a root threw its captions and vectors away."""
    shutil.rmtree(root / "card")
    (root / "card").mkdir()
    [skipped] = index(collection, []).skipped
    assert skipped.path == str(root / "card")
    assert f"holds none of its {MANY} images" in skipped.reason
    assert f"capsearch index --confirm-removed {root / 'card'}" in skipped.reason
    assert len(paths(collection)) == MANY + 3


@pytest.mark.parametrize("by", ["confirm", "prune"])
def test_a_confirmed_folder_is_obeyed(collection, root, by):
    """Issue 11, 2."""
    shutil.rmtree(root / "card")
    confirm = IndexOptions(confirm_removed=(root / "card",))
    assert index(collection, []).removed == 0
    summary = index(collection, [], confirm if by == "confirm" else IndexOptions(prune=True))
    assert (summary.removed, summary.skipped) == (MANY, ())


def test_a_renamed_folder_is_no_loss(collection, root):
    (root / "card").rename(root / "archive")
    summary = index(collection, [])
    assert (summary.reused, summary.removed, summary.skipped) == (MANY, MANY, ())


def test_an_excluded_folder_is_no_loss(collection, root):
    summary = index(collection, [root], IndexOptions(exclude=("card",)))
    assert (summary.removed, summary.skipped) == (MANY, ())


def test_a_few_images_may_go(collection, root):
    shutil.rmtree(root / "few")
    (root / "few").mkdir()
    assert index(collection, []).removed == 3


def test_an_empty_folder_counts_even_if_the_root_has_more(collection, root):
    fill(root / "rest", 2 * MANY, 3)
    index(collection, [])
    shutil.rmtree(root / "card")
    (root / "card").mkdir()
    assert index(collection, []).removed == 0
    (root / "card").rmdir()  # now it is deleted, which a mount point is not
    assert index(collection, []).removed == MANY


def test_an_emptied_root_does_not_block_the_others(collection, root, tmp_path):
    """Issue 11, 3."""
    usb = fill(tmp_path / "usb", 2, 4)
    index(collection, [root, usb])
    for path in usb.iterdir():
        path.unlink()
    fill(root / "new", 1, 5)
    summary = index(collection, [])
    assert summary.added == 1
    assert [skipped.path for skipped in summary.skipped] == [str(usb)]
    with pytest.raises(RootUnavailable, match=f"--confirm-removed {usb}"):
        index(collection, [usb])
    assert index(collection, [], IndexOptions(confirm_removed=(usb,))).removed == 2


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can mount")
def test_a_few_images_of_a_drive_that_is_not_mounted_stay(collection, root):
    """Issue 11, 2: with a real mount point, however few images it has."""
    usb = root / "usb"
    usb.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", usb]).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        fill(usb, 2, 6)
        assert index(collection, []).added == 2
    finally:
        subprocess.run(["umount", usb], check=True)
    [skipped] = index(collection, []).skipped
    assert skipped.path == str(usb)
    assert len(paths(collection)) == MANY + 3 + 2
