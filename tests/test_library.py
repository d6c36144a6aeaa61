"""`import capsearch`: the front door, over an index folder and with toy models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from PIL import Image

import capsearch
from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine import errors
from capsearch.engine.records import GENERATED, Progress
from capsearch.library import Library, best_sentences, describe_files

HEAVY = ("numpy", "torch", "onnxruntime", "faiss", "streamlit", "PIL", "click", "elasticsearch")


@pytest.fixture
def filled(library: Library, image_folder: Path) -> Library:
    (image_folder / "red.txt").write_text("a red car\n一辆红色的车\n", encoding="utf-8")
    library.index(image_folder)
    return library


@pytest.fixture
def described(
    library: Library,
    image_folder: Path,
    describing_model: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> Library:
    """A library of images that a model has described."""
    monkeypatch.setattr(registry, "load", lambda name=None: describing_model)
    library.index(image_folder)
    return library


def names(result: capsearch.engine.records.SearchResult) -> list[str]:
    return [Path(hit.path).name for hit in result]


def test_importing_capsearch_imports_nothing_heavy() -> None:
    script = "import sys, capsearch; capsearch.CapsearchError; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {name.split(".")[0] for name in ran.stdout.split()} & set(HEAVY) == set()


def test_python_that_is_started_in_a_checkout_finds_all_folders() -> None:
    root = Path(__file__).parents[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    script = "import capsearch.engine as e, capsearch.ui as u; print(e.__file__); print(u.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True
    )
    files = [Path(line).resolve() for line in ran.stdout.splitlines()]
    assert files == [root / "engine" / "__init__.py", root / "ui" / "__init__.py"], ran.stderr


def test_opening_a_library_imports_neither_models_nor_stores() -> None:
    script = "import sys, capsearch; capsearch.open('x'); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {name.split(".")[0] for name in ran.stdout.split()} & set(HEAVY) <= {"numpy"}


def test_every_public_name_is_there_and_every_error_is_public() -> None:
    assert all(getattr(capsearch, name) is not None for name in capsearch.__all__)
    assert capsearch.__version__.count(".") == 2
    children = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.CapsearchError)
    }
    assert children <= set(capsearch.__all__)
    assert set(capsearch.__all__) <= set(dir(capsearch))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = capsearch.nothing  # type: ignore[attr-defined]


def test_without_a_place_the_default_index_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSEARCH_INDEX", str(tmp_path / "mine"))
    assert capsearch.open().place == tmp_path / "mine"
    assert capsearch.open("~/x").place == Path.home() / "x"


def test_a_url_is_a_collection_in_a_cluster() -> None:
    url = "https://search.example:9200/images"
    assert capsearch.open(url).place == url
    with pytest.raises(capsearch.IndexProblem, match="HOST:9200/NAME"):
        capsearch.open("https://search.example:9200")


def test_opening_makes_nothing_and_searching_says_that_there_is_nothing(library: Library) -> None:
    with pytest.raises(capsearch.IndexMissing, match="no index at"):
        library.search("red")
    with pytest.raises(capsearch.IndexMissing):
        library.enrich()
    with pytest.raises(capsearch.IndexProblem, match="nothing to index"):
        library.index()
    assert isinstance(library.place, Path) and not library.place.exists()


def test_indexing_reports_its_progress(library: Library, image_folder: Path) -> None:
    steps: list[Progress] = []
    summary = library.index([str(image_folder)], progress=steps.append)
    assert (summary.added, summary.enriched) == (4, None)
    assert str(steps[-1]) == "embed: 4 of 4" and str(steps[0]) == "scan: 0"
    assert library.index().unchanged == 4  # the folders indexed before
    assert library.roots() == (image_folder,)


def test_a_hit_has_score_path_and_caption(filled: Library, image_folder: Path) -> None:
    result = filled.search("something red", limit=2)
    hit = result[0]
    assert (hit.path, hit.rank) == (str(image_folder / "red.png"), 1)
    assert hit.score == max(other.score for other in result)
    assert str(hit.caption("zh")) == "一辆红色的车" and hit.caption("ja") is None
    assert len(result) == 2 and result.more
    assert asdict(hit)["document"]["record"]["format"] == "PNG"


def test_a_query_says_the_rest(filled: Library) -> None:
    query = capsearch.Query("red", mode="cm", offset=1, limit=9)
    assert len(filled.search(query)) == 3
    assert len(filled.search(query, limit=1)) == 1  # what is given beside it counts
    assert names(filled.search("red", filters=capsearch.Filters(caption_language="zh"))) == [
        "red.png"
    ]


def test_an_image_is_a_query_as_a_file_as_bytes_and_with_text(
    filled: Library, image_folder: Path
) -> None:
    blue = image_folder / "blue.png"
    assert names(filled.search(image=blue, limit=1)) == ["blue.png"]
    assert names(filled.search(image=str(blue), text="blue", limit=1)) == ["blue.png"]
    assert names(filled.search(image=blue.read_bytes(), limit=1)) == ["blue.png"]


def test_an_image_that_is_none_is_named(filled: Library, tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"<svg onload=alert(1)>")
    with pytest.raises(capsearch.InvalidImage, match=r"x\.jpg: "):
        filled.search(image=tmp_path / "x.jpg")
    with pytest.raises(capsearch.InvalidImage):
        filled.decode(b"<svg onload=alert(1)>")
    with pytest.raises(capsearch.InvalidQuery, match="nothing to search for"):
        filled.search()


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(filled: Library) -> None:
    content = BytesIO()
    Image.new("RGB", (10, 10)).save(content, "PNG")
    assert filled.decode(content.getvalue()).shape == (16, 16, 3)
    with pytest.raises(capsearch.InvalidImage, match="megapixels"):
        filled.decode(content.getvalue(), max_pixels=99)


def test_what_models_write_is_enriched_by_index_unless_told_otherwise(
    library: Library, image_folder: Path, describing_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "load", lambda name=None: describing_model)
    assert library.index(image_folder, enrich=False).enriched is None
    assert library.enrich().tagged == 4
    assert library.enrich(redo=True).tagged == 4
    enriched = library.index().enriched
    assert enriched is not None and enriched.tagged == 0


def test_tags_have_the_names_of_their_concepts_in_any_language(described: Library) -> None:
    [hit] = [hit for hit in described.search("blue") if "blue" in hit.path]
    english, japanese = hit.tags("en"), hit.tags("ja")
    assert [str(tag) for tag in english] == [tag.label for tag in hit.document.tags]
    assert all(tag.source.startswith(GENERATED) for tag in japanese)
    assert [tag.concept for tag in english] == [tag.concept for tag in japanese]


def test_people_accept_correct_and_reject_what_models_wrote(described: Library) -> None:
    [blue] = [d for d in described.newest(capsearch.Filters(), 9) if "blue" in d.record.path]
    first, second, third = blue.captions
    described.accept(blue.record.id, first)
    described.correct(blue.record.id, second, "another text")
    described.reject(blue.record.id, third)
    captions = described.lookup([blue.record.id])[blue.record.id].captions
    assert [(caption.text, caption.generated) for caption in captions] == [
        (first.text, False),
        ("another text", False),
    ]
    with pytest.raises(capsearch.InvalidCaptions):
        described.reject(blue.record.id, third)


def test_an_index_rebuilt_elsewhere_with_another_model_is_opened_again(
    filled: Library, make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(filled) == 4
    other = make_model(turn=1)
    monkeypatch.setattr(registry, "load", lambda name=None: other)
    capsearch.open(filled.place, model="other").index(options=capsearch.IndexOptions(rebuild=True))
    with pytest.raises(capsearch.ModelMismatch):
        filled.search("red")
    filled.refresh()
    assert names(filled.search("red", limit=1)) == ["red.png"]


def test_exports_go_to_files_streams_and_folders(filled: Library, tmp_path: Path) -> None:
    stream = StringIO()
    filled.export("csv", stream)
    assert filled.export("csv", tmp_path / "all.csv").written == 1
    assert (tmp_path / "all.csv").read_text(encoding="utf-8") == stream.getvalue()
    assert filled.export("text", tmp_path / "texts").written == 1
    with pytest.raises(capsearch.IndexProblem, match="is not overwritten"):
        filled.export("coco", tmp_path / "all.csv")
    with pytest.raises(ValueError, match="needs an output"):
        filled.export("coco")
    with pytest.raises(ValueError, match="folder"):
        filled.export("text", stream)


def test_forgetting_asks_first(filled: Library, image_folder: Path) -> None:
    assert filled.forget(image_folder, lambda known: known.images != 4) is None
    gone = filled.forget(image_folder)
    assert gone is not None and (gone.images, gone.captions) == (4, 2)
    with pytest.raises(capsearch.IndexEmpty):
        filled.search("red")
    assert len(filled) == 0 and filled  # an empty library is one all the same


def test_stats_facets_and_near_duplicates(
    filled: Library, image_folder: Path, image: Callable[..., Path]
) -> None:
    image(image_folder / "red again.png", "red", size=20)
    filled.index()
    assert filled.stats().images == len(filled) == 5
    assert {facet.value: facet.images for facet in filled.facets().caption_languages} == {
        "en": 1,
        "zh": 1,
    }
    red = filled.search("red", limit=1)[0]
    [(copy, cosine)] = filled.near_duplicates(red.image_id)
    assert copy.record.id != red.image_id and cosine == pytest.approx(1.0)
    assert filled.thumbnail(red.record, 64).is_file()
    assert filled.captioned() and not filled.calibrated and filled.model_problem() is None


def test_one_image_is_described_without_an_index(
    image_folder: Path, describing_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "load", lambda name=None: describing_model)
    description = capsearch.describe(image_folder / "blue.png")
    assert description.captions and description.tags
    with pytest.raises(capsearch.InvalidImage, match=r"gone\.png: "):
        capsearch.describe(image_folder / "gone.png")


def test_a_model_without_the_head_asked_for_is_an_error(
    image_folder: Path, toy_models: Model
) -> None:
    with pytest.raises(capsearch.UnknownModel, match="neither captions nor tags"):
        capsearch.describe(image_folder / "blue.png")
    with pytest.raises(capsearch.UnknownModel):
        describe_files([image_folder / "blue.png"], head="tagger")


def test_sentences_are_ranked_for_an_image(image_folder: Path, toy_models: Model) -> None:
    best = best_sentences(image_folder / "blue.png", ["a red car", "the blue sky"], limit=1)
    assert [sentence.text for sentence in best] == ["the blue sky"]


def test_one_side_of_a_copy_is_a_folder(filled: Library, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one side is a folder"):
        filled.copy(capsearch.open(tmp_path / "other"))
