"""capsearch enrich, caption, tag, describe and export on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model

Run = Callable[..., "Ran"]  # noqa: F821 - tests/ui/conftest.py


@pytest.fixture
def describing(run: Run, describing_model: Model, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Every model name loads the toy model with a tagger and a captioner."""
    monkeypatch.setattr(registry, "load", lambda name=None: describing_model)
    return describing_model


def test_index_describes_images_once_they_can_be_searched(
    run: Run, describing: Model, image_folder: Path
) -> None:
    ran = run("index", image_folder)
    assert ran.code == 0
    assert "enriched: 4 images tagged, 4 captioned (12 captions)" in ran.out
    assert run("index", "--json").json["enriched"]["captioned"] == 0


def test_no_enrich_leaves_it_to_a_later_run(
    run: Run, describing: Model, image_folder: Path
) -> None:
    assert run("index", image_folder, "--no-enrich", "--json").json["enriched"] is None
    done = run("enrich", image_folder / "trips", "--json").json
    assert (done["tagged"], done["captioned"], done["pending"]) == (1, 1, 0)
    assert "3 captioned" in run("enrich").out
    assert run("enrich", "--redo", "--json").json["captioned"] == 4


@pytest.mark.elastic
def test_images_in_a_cluster_are_described_there(
    run: Run, describing: Model, image_folder: Path, index_path: Path, cloud: str
) -> None:
    there = ("--backend", cloud)
    missing = run("enrich", *there)
    assert (missing.code, "no collection at" in missing.err) == (2, True)
    made = run("index", image_folder, *there, "--replicas", "0", "--no-enrich", "--json")
    assert (made.code, made.json["enriched"]) == (0, None)
    done = run("enrich", image_folder / "trips", *there, "--json").json
    assert (done["tagged"], done["captioned"], done["pending"]) == (1, 1, 0)
    (image_folder / "red.txt").write_text("a red wall", encoding="utf-8")
    again = run("index", *there, "--json").json
    assert (again["captions_added"], again["enriched"]["captioned"]) == (1, 3)
    assert run("info", *there, "--json").json["captions"] == 12 + 1
    content = run("export", "--format", "coco", *there).json
    assert len(content["annotations"]) == 12 + 1
    assert run("copy", cloud, index_path).code == 0
    assert run("export", "--format", "coco", "--index", index_path).json == content


def test_a_model_without_heads_is_one_line(run: Run, indexed: Path) -> None:
    for arguments in (["enrich"], ["caption", indexed / "red.png"], ["tag", indexed / "red.png"]):
        ran = run(*arguments)
        assert (ran.code, len(ran.err.splitlines())) == (2, 1)
        assert "fake writes neither captions nor tags" in ran.err


def test_enrich_without_an_index_is_an_error(run: Run, describing: Model, index_path: Path) -> None:
    ran = run("enrich")
    assert (ran.code, index_path.exists()) == (2, False)
    assert "no index at" in ran.err


def test_captions_of_files(run: Run, describing: Model, image_folder: Path) -> None:
    ran = run("caption", image_folder / "blue.png", "--language", "ja")
    assert ran.out.split() == [str(image_folder / "blue.png"), "ja", "100%", "青の画像"]
    [found] = run("caption", image_folder / "blue.png", "--json").json
    assert [one["text"] for one in found["captions"]] == ["a blue image", "蓝色的图像", "青の画像"]
    assert found["captions"][0]["source"] == "model:toy-captions@1"


def test_tags_of_files_in_a_language(
    run: Run, describing: Model, image_folder: Path, image: Callable[..., Path]
) -> None:
    image(image_folder / "flag.png", "blue", "white", "red")
    ran = run("tag", image_folder / "flag.png", "--language", "zh", "--limit", "2")
    assert [line.split()[-1] for line in ran.out.splitlines()] == ["蓝色", "红色"]
    [found] = run("tag", image_folder / "flag.png", "--json").json
    assert {one["name"] for one in found["tags"]} == {"blue", "white", "red"}


def test_a_file_that_is_no_image_is_named(run: Run, describing: Model, image_folder: Path) -> None:
    (image_folder / "no.jpg").write_bytes(b"no image")
    ran = run("caption", image_folder / "no.jpg", image_folder / "red.png", image_folder / "gone")
    assert ran.code == 1
    assert len(ran.out.splitlines()) == 3
    assert [line.split()[0] for line in ran.err.splitlines()] == ["skipped", "skipped"]


def test_the_best_sentences_of_a_pool(run: Run, describing: Model, image_folder: Path) -> None:
    pool = image_folder / "pool.txt"
    pool.write_text(
        "a blue sea\n红色的车\n\nzyzzyva\n青い海と赤い車\na green tree\n", encoding="utf-8"
    )
    found = run("describe", image_folder / "blue.png", "--sentences", pool, "--json").json
    assert [one["text"] for one in found["sentences"]] == [
        "a blue sea", "青い海と赤い車", "红色的车", "a green tree",
    ]  # fmt: skip
    ran = run("describe", image_folder / "red.png", "--sentences", pool, "--limit", "1")
    assert ran.out.split() == ["1.000", "zh", "红色的车"]
    assert run("describe", image_folder / "red.png", "--sentences", pool, "--language", "zh").out


def test_describe_needs_an_image_and_sentences(
    run: Run, describing: Model, image_folder: Path
) -> None:
    (image_folder / "pool.txt").write_text("\n")
    ran = run("describe", image_folder / "red.png", "--sentences", image_folder / "pool.txt")
    assert (ran.code, "at least one sentence" in ran.err) == (2, True)
    (image_folder / "pool.txt").write_text("a cat\n")
    ran = run("describe", image_folder / "pool.txt", "--sentences", image_folder / "pool.txt")
    assert (ran.code, "pool.txt: " in ran.err) == (2, True)


def test_export_to_stdout_and_to_a_new_file(
    run: Run, describing: Model, image_folder: Path, tmp_path: Path
) -> None:
    run("index", image_folder)
    content = run("export", "--format", "coco").json
    assert len(content["annotations"]) == 12
    target = tmp_path / "captions.json"
    assert run("export", "--format", "coco", "--output", target).code == 0
    assert json.loads(target.read_text(encoding="utf-8")) == content
    again = run("export", "--format", "csv", "--output", target)
    assert (again.code, "is not overwritten" in again.err) == (2, True)


def test_export_of_sidecars(
    run: Run, describing: Model, image_folder: Path, tmp_path: Path
) -> None:
    run("index", image_folder)
    ran = run("export", image_folder / "trips", "--format", "xmp")
    assert ran.out == "written: 1 files, 0 left as they are\n"
    done = run("export", "--format", "text", "--output", tmp_path / "texts", "--json").json
    assert done == {"written": 4, "skipped": []}
    assert run("export", "--format", "text").code == 2
    assert run("export", "--format", "csv", "--json").code == 2  # CSV is no JSON
    assert run("export", "--format", "xmp", "--output", tmp_path).code == 2


def test_a_tag_filter_finds_other_names(run: Run, describing: Model, image_folder: Path) -> None:
    run("index", image_folder)
    found = run("query", "blue", "--tag", "青", "--tag", "color", "--paths").out.split()
    assert found == [str(image_folder / "blue.png")]
