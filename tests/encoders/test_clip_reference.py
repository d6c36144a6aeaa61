"""Names of open_clip models, the languages they read, and where their weights are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capsearch.encoders.models import open_clip, registry
from capsearch.encoders.models.clip import Reference
from capsearch.engine.errors import UnknownModel

ALL = ("en", "zh", "ja")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ViT-B-32", Reference("ViT-B-32")),
        ("ViT-B-32/openai", Reference("ViT-B-32", "openai")),
        ("hf-hub:org/name", Reference("hf-hub:org/name")),
        ("/models/mine", Reference(path=Path("/models/mine").absolute())),
        ("./mine", Reference(path=Path("mine").absolute())),
    ],
)
def test_a_name_is_a_model_with_weights_a_repository_or_a_path(
    text: str, expected: Reference
) -> None:
    assert Reference.parse(text) == expected
    assert Reference.parse(str(expected).removeprefix("open_clip:")) == expected


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("xlm-roberta-base-ViT-B-32", ALL),
        ("xlm-roberta-large-ViT-H-14", ALL),
        ("ViT-B-16-SigLIP-i18n-256", ALL),
        ("ViT-B-16-SigLIP2", ALL),
        ("nllb-clip-base-siglip", ALL),
        ("ViT-B-16-SigLIP", ("en",)),
        ("ViT-B-32", ("en",)),
        ("hf-hub:org/chinese-clip-b16", ("zh",)),
    ],
)
def test_the_languages_of_known_models(name: str, languages: tuple[str, ...]) -> None:
    assert Reference.parse(name).languages == languages


def test_a_reference_is_not_a_path_but_the_path_in_it_is_made_absolute() -> None:
    assert not registry.is_path("open_clip:ViT-B-32/openai")
    assert registry.is_path("other:x/y")
    assert registry.reference("open_clip:ViT-B-32/openai") == "open_clip:ViT-B-32/openai"
    assert registry.reference("open_clip:./mine") == f"open_clip:{Path('mine').absolute()}"


def test_a_checkpoint_file_belongs_to_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "epoch_3.pt"
    file.write_bytes(b"")
    (tmp_path / "open_clip_config.json").write_text("{}")
    reference = Reference.parse(str(file))
    assert reference.folder == tmp_path
    assert open_clip.checkpoint(reference, None) == file


def test_safetensors_are_preferred_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text("{}")
    for name in ("open_clip_pytorch_model.bin", "open_clip_model.safetensors"):
        (tmp_path / name).write_bytes(b"")
    found = open_clip.checkpoint(Reference.parse(str(tmp_path)), None)
    assert found.name == "open_clip_model.safetensors"


def test_a_folder_without_config_or_weights_says_what_is_missing(tmp_path: Path) -> None:
    reference = Reference.parse(str(tmp_path))
    with pytest.raises(UnknownModel, match=r"no open_clip_config\.json in"):
        open_clip.checkpoint(reference, None)
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(UnknownModel, match=r"put open_clip_model\.safetensors there"):
        open_clip.checkpoint(reference, None)


def library(tags: list[str], **settings: str) -> Any:
    def download(*_: object) -> str:
        raise FileNotFoundError("no route to host")

    return SimpleNamespace(
        list_models=lambda: ["ViT-B-32", "ViT-B-16"],
        list_pretrained_tags_by_model=lambda name: tags,
        get_pretrained_cfg=lambda name, tag: settings,
        download_pretrained=download,
        pretrained=SimpleNamespace(download_pretrained_from_hf=download),
    )


def test_the_only_weights_need_no_name_others_are_listed() -> None:
    reference = Reference("ViT-B-32")
    assert open_clip.resolved(reference, library(["openai"])) == Reference("ViT-B-32", "openai")
    with pytest.raises(UnknownModel, match="has: ViT-B-32/openai, ViT-B-32/laion"):
        open_clip.resolved(reference, library(["openai", "laion"]))
    with pytest.raises(UnknownModel, match="there is: ViT-B-32, ViT-B-16"):
        open_clip.resolved(Reference("ViT-B-33"), library([]))
    local = Reference(path=Path("/x"))
    assert open_clip.resolved(local, library([])) == local


@pytest.mark.parametrize(
    ("reference", "settings", "origin"),
    [
        (Reference("ViT-B-32", "openai"), {"hf_hub": "org/vit/"}, "of org/vit on"),
        (Reference("ViT-B-32", "old"), {"url": "https://example.org/w.pt"}, "example"),
        (Reference("hf-hub:org/name"), {}, "of org/name on"),
    ],
)
def test_without_a_network_one_line_says_what_to_fetch_and_where_to_put_it(
    reference: Reference, settings: dict[str, str], origin: str
) -> None:
    with pytest.raises(UnknownModel) as caught:
        open_clip.checkpoint(reference, library(["openai"], **settings))
    message = str(caught.value)
    assert origin in message and "open_clip:./FOLDER" in message and "no route" in message
    assert "\n" not in message


def test_offline_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownModel, match="HF_HUB_OFFLINE is set"):
        open_clip.checkpoint(Reference("ViT-B-32", "old"), library([], url="https://example.org/w"))


def test_a_checksum_is_recorded_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "models"))
    file = tmp_path / "w.safetensors"
    file.write_bytes(b"one")
    assert open_clip.sha256(file) == hashlib.sha256(b"one").hexdigest()
    record = tmp_path / "models" / open_clip.CHECKSUMS
    stored = json.loads(record.read_text())
    stored[str(file.resolve())]["sha256"] = "as recorded"
    record.write_text(json.dumps(stored))
    assert open_clip.sha256(file) == "as recorded"
    file.write_bytes(b"other")
    assert open_clip.sha256(file) == hashlib.sha256(b"other").hexdigest()
