"""`capsearch models export`: an open_clip model as a model folder that is served without torch.

Both towers become ONNX graphs, the tokenizer a tokenizer.json, which `encoders.models.clip` reads
without torch. The export is compared with the original on images and on sentences in three
languages before the folder becomes a model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.encoders.images.preprocess import decode
from capsearch.encoders.models import model_folder
from capsearch.encoders.models.clip import FILE, SCHEME, OnnxTextTower, Reference, Tokens
from capsearch.encoders.models.image import Backbone
from capsearch.encoders.models.open_clip import OpenClip, TorchImageTower, TorchTextTower
from capsearch.encoders.models.text import own_calibration
from capsearch.engine.errors import InvalidImage, MissingExtra, UnknownModel
from capsearch.engine.records import LANGUAGES, Pixels, Vectors

if TYPE_CHECKING:
    from capsearch.encoders.train.graphs import TextGraph


# CLIP's own pattern of words; its texts are lowercase.
_CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CLEAN = {"_clean_lower": "lower", "_clean_whitespace": "whitespace"}


@dataclass(frozen=True, slots=True)
class ConvertedTokenizer:
    """The content of tokenizer.json, and what open_clip does before and after it."""

    json: str
    clean: str  # a key of encoders.models.clip.CLEANERS
    zeroed: tuple[int, ...]  # ids that become 0
    pads_right: bool


def convert(tokenizer: Any, name: str) -> ConvertedTokenizer:
    """UnknownModel for a tokenizer that tokenizer.json cannot express."""
    cleaning = getattr(getattr(tokenizer, "clean_fn", None), "__name__", "_clean_canonicalize")
    clean = _CLEAN.get(cleaning, "canonicalize")
    if hasattr(tokenizer, "bpe_ranks"):
        if tokenizer.reduction_fn is not None:
            raise UnknownModel(f"{name} shortens texts at random; it can only be used with torch")
        return ConvertedTokenizer(_clip(tokenizer), clean, (), True)
    inner = tokenizer.tokenizer
    if getattr(tokenizer, "tokenizer_mode", "") or not hasattr(inner, "backend_tokenizer"):
        raise UnknownModel(f"the tokenizer of {name} has no tokenizer.json; use it with torch")
    zeroed = (int(inner.sep_token_id),) if getattr(tokenizer, "strip_sep_token", False) else ()
    return ConvertedTokenizer(
        _hugging_face(inner, tokenizer.context_length), clean, zeroed, inner.padding_side == "right"
    )


def _clip(tokenizer: Any) -> str:
    """CLIP's byte-pair encoding, as open_clip's SimpleTokenizer has it."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.get)
    made = Tokenizer(models.BPE(tokenizer.encoder, merges, end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(f"(?i:{_CLIP_WORDS})"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    first, last = (tokenizer.decoder[id_] for id_ in tokenizer.all_special_ids[:2])
    made.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(first, tokenizer.sot_token_id), (last, tokenizer.eot_token_id)],
    )
    made.enable_truncation(tokenizer.context_length)
    made.enable_padding(length=tokenizer.context_length, pad_id=0, pad_token=tokenizer.decoder[0])
    return str(made.to_str())


def _hugging_face(inner: Any, context_length: int) -> str:
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(inner.backend_tokenizer.to_str())
    made.enable_truncation(context_length, direction=inner.truncation_side)
    made.enable_padding(
        direction=inner.padding_side,
        length=context_length,
        pad_id=inner.pad_token_id,
        pad_token=inner.pad_token,
    )
    return str(made.to_str())


PARITY = 0.999  # the least cosine of a float export with the original
CHECKED_IMAGES = 16
SENTENCES = (
    "A cat lies on the keyboard of a laptop.",
    "Two people are riding bicycles along the beach at sunset.",
    "a plate with salad, bread & an egg",
    "一只猫趴在笔记本电脑上。",
    "两个人在日落时沿着海滩骑自行车",
    "盘子里有沙拉、面包和鸡蛋",
    "ノートパソコンの上で猫が寝ている。",
    "夕暮れの浜辺を二人が自転車で走っている",
    "サラダとパンと卵がのったお皿",
)
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Parity:
    """The least and the mean cosine of an export's vectors with the original's."""

    images: float
    texts: float
    mean_images: float
    mean_texts: float


@dataclass(frozen=True, slots=True)
class Export:
    """A finished export."""

    folder: Path
    name: str
    size_bytes: int
    parity: Parity


def export(
    reference: str,
    folder: Path,
    int8: bool = False,
    languages: Sequence[str] = (),
    images: Path | None = None,
    report: Report = lambda line: None,
) -> Export:
    """Writes a model of kind `clip`; `reference` is `open_clip:...`.

    `languages` overrides what is known of the model. `images` is a folder of images to compare
    with; without it, generated ones are taken. UnknownModel if the folder holds a model already,
    or if the export's vectors are not the original's.
    """
    if (folder / model_folder.CARD).is_file():
        raise UnknownModel(f"{folder} holds a model already; choose another folder")
    unknown = [language for language in languages if language not in LANGUAGES]
    if unknown:
        raise UnknownModel(f"no language '{unknown[0]}'; there is {', '.join(LANGUAGES)}")
    graphs = _graphs()
    source = OpenClip.find(Reference.parse(reference.removeprefix(f"{SCHEME}:")))
    pixels = _pixels(TorchImageTower(source), images)
    folder.mkdir(parents=True, exist_ok=True)
    report("exporting the tokenizer and the text tower")
    tokens = _write_tokenizer(source, folder)
    text = graphs.TextGraph(source)
    tokens = replace(tokens, trim=tokens.trim and _trims(source, text, graphs))
    graphs.text_graph(source, text, SENTENCES, folder / "text.onnx", tokens.trim)
    report("exporting the image tower")
    graphs.image_graph(source, folder / "image.onnx")
    card = _card(source, folder, tokens, languages)
    report("comparing with the original")
    parity = _compared(source, folder, card, tokens, pixels)
    if min(parity.images, parity.texts) < PARITY:
        raise UnknownModel(
            f"the export of {reference} is not the original: cosine {parity.images:.4f} on images, "
            f"{parity.texts:.4f} on sentences, {PARITY} expected"
        )
    if int8:
        report("quantising")
        for name in ("text.onnx", "image.onnx"):
            graphs.to_int8(folder / name, folder / f"int8-{name}")
            (folder / name).unlink()
            (folder / f"{name}.data").unlink(missing_ok=True)
            (folder / f"int8-{name}").rename(folder / name)
        digest = model_folder.digest(folder)
        card |= {"digest": digest, "backbone_digest": digest, "weights": "int8"}
        parity = _compared(source, folder, card, tokens, pixels)
    _copy_calibration(source, folder, int8)
    model_folder.write_card(folder, {**card, "parity": asdict(parity)})
    size = sum(path.stat().st_size for path in folder.iterdir())
    return Export(folder, str(card["name"]), size, parity)


def _graphs() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401

        from capsearch.encoders.train import graphs
    except ImportError:
        raise MissingExtra("exporting a model", "clip") from None
    return graphs


def _write_tokenizer(source: OpenClip, folder: Path) -> Tokens:
    """Writes tokenizer.json; UnknownModel unless it gives the ids of the original."""
    name = str(source.reference)
    converted = convert(source.tokenizer, name)
    (folder / FILE).write_text(converted.json, encoding="utf-8")
    tokens = Tokens(folder, converted.clean, converted.zeroed)
    long = " ".join(SENTENCES)  # more than most contexts hold
    texts = [*SENTENCES, long]
    if not np.array_equal(tokens.ids(texts), source.tokenizer(texts).numpy()):
        raise UnknownModel(f"the tokenizer of {name} cannot be exported; use the model with torch")
    return replace(tokens, trim=converted.pads_right)


def _trims(source: OpenClip, text: TextGraph, graphs: Any) -> bool:
    """Whether padding may be left out."""
    ids = source.tokenizer([graphs.SHORT])[0]
    return bool(graphs.may_be_trimmed(source, text, int(ids[-1])))


def _card(
    source: OpenClip, folder: Path, tokens: Tokens, languages: Sequence[str]
) -> dict[str, Any]:
    settings = source.preprocessing
    return {
        **source.card(),
        "name": folder.name,
        "description": f"exported from {source.reference}",
        "licence": "that of the original weights",
        **({"languages": list(languages)} if languages else {}),
        "input_size": settings["size"],
        "resample": settings["interpolation"],
        "resize": settings["resize_mode"],
        "clean": tokens.clean,
        "zeroed": list(tokens.zeroed),
        "trim": tokens.trim,
        "backbone_digest": source.digest,
    }


def _compared(
    source: OpenClip, folder: Path, card: dict[str, Any], tokens: Tokens, pixels: list[Pixels]
) -> Parity:
    image = Backbone(folder.name, "", card["input_size"], card["dimension"], folder / "image.onnx")
    text = OnnxTextTower(folder / "text.onnx", card["dimension"], tokens)
    images = _cosines(TorchImageTower(source).features(pixels), image.features(pixels))
    texts = _cosines(TorchTextTower(source).encode(SENTENCES), text.encode(SENTENCES))
    return Parity(*map(float, (images.min(), texts.min(), images.mean(), texts.mean())))


def _cosines(original: Vectors, exported: Vectors) -> Vectors:
    return np.asarray((original * exported).sum(axis=1))


def _pixels(tower: TorchImageTower, folder: Path | None) -> list[Pixels]:
    """Images of a folder as the tower takes them, or generated ones."""
    if folder is None:
        from PIL import Image

        random = np.random.default_rng(0)
        small = random.integers(0, 256, (CHECKED_IMAGES, 12, 16, 3), np.uint8)  # blurred when grown
        grown = [Image.fromarray(pixels).resize((320, 240)) for pixels in small]
        return [tower.preprocess(image) for image in grown]
    decoded: list[Pixels] = []
    for path in sorted(folder.iterdir()):
        try:
            decoded.append(decode(path, tower.preprocess).pixels)
        except (InvalidImage, OSError):
            continue
        if len(decoded) == CHECKED_IMAGES:
            break
    if not decoded:
        raise UnknownModel(f"no images in {folder} to compare the export with")
    return decoded


def _copy_calibration(source: OpenClip, folder: Path, int8: bool) -> None:
    """A float export has the vectors of the original, so that calibration of it holds too."""
    own = own_calibration(str(source.reference), source.digest)
    if own.is_dir() and not int8:
        for path in own.iterdir():
            shutil.copyfile(path, folder / path.name)
