"""A real, small open_clip model through everything: export, search, calibrate, distil, page.

Set CAPSEARCH_DATA to a folder of captioned images; CAPSEARCH_TEST_STEPS shortens the training.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

pytest.importorskip("torch")
from small_clip import needs_open_clip
from trained_clip import train_clip

from capsearch.encoders.data.dataset import CaptionDataset, read
from capsearch.encoders.data.features import load_features
from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.ui.cli.main import main

DATA = os.environ.get("CAPSEARCH_DATA", "")
COUNT, BEST = 500, 10
pytestmark = [
    needs_open_clip,
    pytest.mark.slow,
    pytest.mark.data,
    pytest.mark.skipif(not DATA, reason="set CAPSEARCH_DATA to a folder"),
]


def recall(model: Model, data: CaptionDataset) -> dict[str, float]:
    """Recall@10 among all images, one caption of each as query, as a multiple of chance."""
    kept, features = load_features(model.image, data, None)
    images = model.image.project(features)
    found = {}
    for language in ("en", "zh", "ja"):
        rows = [row for row, one in enumerate(kept.images) if one.captions.get(language)]
        texts = [kept.images[row].captions[language][0].text for row in rows]
        scores = model.text.encode(texts, language).visual @ images.T
        best = np.argsort(-scores, axis=1)[:, :BEST]
        hits = (best == np.array(rows)[:, None]).any(axis=1)
        found[language] = float(hits.mean()) / (BEST / len(kept))
    print(model.name, {key: round(value, 2) for key, value in found.items()}, "times chance")
    return found


def test_a_trained_model_searches_better_than_chance_all_the_way(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_page: Callable[..., AppTest],
) -> None:
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("CAPSEARCH_INDEX", str(tmp_path / "index"))
    data, cache = ["--data", DATA], ["--cache", str(tmp_path / "cache")]
    original = f"open_clip:{train_clip(tmp_path / 'clip', Path(DATA))}"
    parameters = sum(
        p.numel() for p in registry.load(original).text.tower.source.network.parameters()
    )
    assert 8e6 < parameters < 12e6
    validation = read([Path(DATA)], splits=["val"]).first(COUNT)
    folder = tmp_path / "images"
    folder.mkdir()
    for image, content in validation.contents():
        (folder / image.file).write_bytes(content)

    assert main(["models", "export", original, "tenm", "--images", str(folder)]) == 0
    for name in (original, "tenm"):
        assert min(recall(registry.load(name), validation).values()) > 2

    assert main(["index", str(folder), "--model", "trio-fast"]) == 0
    assert main(["index", "--model", "tenm"]) == 2  # one visual space an index
    assert main(["index", "--model", "tenm", "--rebuild"]) == 0
    assert main(["calibrate", "--model", "tenm", *data, *cache]) == 0
    assert main(["index", "--model", "tenm", "--rebuild"]) == 0
    capsys.readouterr()
    assert main(["query", "两只长颈鹿", "--json", "--min-score", "0"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert hits and all(0 <= hit["score"] <= 1 for hit in hits)

    taught = ["--teacher", "tenm", "--name", "student", "--limit", "4000", "--epochs", "6"]
    assert main(["train", "text", *data, *cache, *taught]) == 0
    assert min(recall(registry.load("student"), validation).values()) > 2
    assert main(["index", "--model", "student", "--rebuild"]) == 0
    page = run_page(q="二匹のキリン")
    assert any(button.label.startswith("Open image") for button in page.button)
