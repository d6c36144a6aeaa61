"""`capsearch copy`, and --backend of the commands that take it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
CLOUD = "https://search.example:9200/images"


@pytest.mark.parametrize(("source", "target"), [("a", "b"), (CLOUD, CLOUD)])
def test_one_side_is_a_folder_and_one_a_cluster(source: str, target: str, run: Run) -> None:
    ran = run("copy", source, target)
    assert ran.code == 2 and "one of FROM and TO is a folder" in ran.err


def test_a_wrong_address_is_one_line(run: Run) -> None:
    for command in (["query", "red"], ["info"], ["index", "."], ["ui"]):
        ran = run(*command, "--backend", "https://search.example:9200")
        assert (ran.code, len(ran.err.splitlines())) == (2, 1) and "HOST:9200/NAME" in ran.err


@pytest.mark.elastic
def test_copy_query_info_and_back(
    indexed: Path, index_path: Path, cloud: str, run: Run, tmp_path: Path
) -> None:
    copied = run("copy", index_path, cloud, "--replicas", "0", "--json")
    assert (copied.code, copied.json["copied"]) == (0, 4)
    here = run("query", "something red", "--json")
    there = run("query", "something red", "--json", "--backend", cloud)
    assert [hit["path"] for hit in there.json["hits"]] == [hit["path"] for hit in here.json["hits"]]
    assert run("info", "--backend", cloud, "--json").json["images"] == 4
    back = run("copy", cloud, tmp_path / "back")
    assert back.code == 0 and back.out.startswith("copied: 4 images, 0 unchanged")
    again = run("query", "something red", "--json", "--index", tmp_path / "back")
    assert again.json["hits"] == here.json["hits"]


@pytest.mark.elastic
def test_index_query_and_update_a_cluster(
    image_folder: Path, toy_models: Any, cloud: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run("index", image_folder, "--backend", cloud, "--replicas", "0")
    assert made.code == 0 and made.out.startswith("indexed: 4 added, 0 reused")
    assert f"--backend {cloud}" in made.err
    monkeypatch.setenv("CAPSEARCH_BACKEND", cloud)
    assert run("query", "something red", "--paths").out.splitlines()[0].endswith("red.png")
    (image_folder / "red.png").unlink()
    assert run("index", "--json").json["removed"] == 1
    assert run("info", "--json").json["roots"] == [str(image_folder)]


@pytest.mark.elastic
def test_a_new_cluster_collection_needs_a_folder(toy_models: Any, cloud: str, run: Run) -> None:
    ran = run("index", "--backend", cloud)
    assert ran.code == 2 and "name a folder" in ran.err
    assert "no collection" in run("info", "--backend", cloud).err  # nothing was made


@pytest.mark.elastic
def test_a_password_is_not_shown_and_not_stored(
    indexed: Path, index_path: Path, cloud: str, run: Run, elastic_node: Any
) -> None:
    shown = [run("copy", index_path, cloud), run("info", "--backend", cloud, "--json")]
    assert all(elastic_node.password not in one.out + one.err for one in shown)
    files = [file for file in index_path.rglob("*") if file.is_file()]
    assert not any(elastic_node.password.encode() in file.read_bytes() for file in files)


@pytest.mark.elastic
def test_a_collection_that_is_not_there_is_one_line(cloud: str, run: Run) -> None:
    ran = run("query", "red", "--backend", cloud)
    assert ran.code == 2 and len(ran.err.splitlines()) == 1 and "capsearch index" in ran.err
