"""What the commands of training and calibration are told: one dataclass a command.

A field is an option: `batch_size` is --batch-size, `from_` is --from, `flip` = True is --no-flip.
The command line is derived from a field's name, type, default and metadata (ui.cli.declared), so
that an option is written here and nowhere else. Imports nothing that `--help` would wait for.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal

from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import LANGUAGES

DEFAULT_BACKBONE = "tinyvit-trio"


def option(
    help: str,
    default: Any = MISSING,
    *,
    least: float | None = None,
    most: float | None = None,
    exists: Literal["path", "folder", "file", "new file"] | None = None,
    metavar: str | None = None,
) -> Any:
    """A field that is an option of a command; required without a default.

    `least`, `most`: the numbers it takes. `exists`: what must be at its path, if anything must.
    """
    return field(
        default=default,
        metadata={"help": help, "least": least, "most": most, "exists": exists, "metavar": metavar},
    )


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The options of every training run: its data, its output, its optimisation."""

    data: tuple[Path, ...] = option(
        "A file or folder of captioned images. Repeat the option to merge several.",
        exists="path",
        metavar="PATH",
    )
    images: Path | None = option(
        "The folder of the image files. Set it when they are not beside the captions.",
        None,
        exists="folder",
    )
    lang: tuple[str, ...] = option(
        "A language to train: en, zh or ja. Repeat the option for several; the default is all "
        "three. Name only languages that the training captions have.",
        (),
        metavar="CODE",
    )
    caption_source: tuple[str, ...] = option(
        "Use only captions of this source, as the data names it (coco, coco-cn, ...), and the "
        "images that have one. Repeat the option for several; the default is all.",
        (),
        metavar="NAME",
    )
    train_split: str = option("The split to train on.", "train", metavar="NAME")
    val_split: str = option(
        "The split that chooses the best epoch and calibrates scores. Never use a test split.",
        "val",
        metavar="NAME",
    )
    limit: int | None = option(
        "Train on the first N images only, for a quick trial or a learning curve.",
        None,
        least=2,
        metavar="N",
    )
    min_count: int = option(
        "A word enters the vocabulary when it occurs this often in the training captions. Lower it "
        "for small data sets.",
        5,
        least=1,
    )
    licence: str = option(
        "The licence of the captions. It is recorded in the model's card.", "not stated"
    )
    name: str = option("The name of the new model.")
    output: Path | None = option(
        "The folder to write the model to.  [default: NAME in your models folder]", None
    )
    cache: Path | None = option(
        "The folder for cached features. It may become large and is safe to delete.  [default: "
        "your cache directory]",
        None,
    )
    resume: bool = option(
        "Continue an interrupted run from its last finished epoch. Give the same options as "
        "before; the result is the same as without the interruption.",
        False,
    )
    batch_size: int = option(
        "Images per training step. More images give each caption more negatives and need more "
        "memory; raise --lr with it.",
        256,
        least=2,
    )
    seed: int = option(
        "The random seed. Change it to measure how much results vary between runs.", 7
    )
    epochs: int = option(
        "How often to go through the training images at most. Training stops earlier when "
        "validation has not improved for four epochs.",
        10,
        least=1,
    )
    lr: float = option("The peak learning rate. Lower it when the loss diverges.", 1e-3)

    @property
    def languages(self) -> tuple[str, ...]:
        """Those named, or all."""
        return self.lang or LANGUAGES

    @property
    def folder(self) -> Path:
        """Where the model is written."""
        from capsearch.encoders.models.registry import user_models_dir

        return self.output or user_models_dir() / self.name

    @property
    def features(self) -> Path:
        """The folder of cached features."""
        from capsearch.encoders.data.features import default_cache

        return self.cache or default_cache()

    @property
    def written(self) -> dict[str, Path]:
        """The names and folders of all models that are made."""
        return {self.name: self.folder}


@dataclass(frozen=True, kw_only=True)
class LabelledRun(TrainingRun):
    """A run that can also train on images with labels instead of captions."""

    labelled: tuple[Path, ...] = option(
        "A folder of images with labels instead of captions, in the same layout. Names of what a "
        "label stands for are what the model learns of them. Repeat the option for several.",
        (),
        exists="folder",
    )
    all_concepts: bool = option(
        "Train on the concepts of --labelled that are held out otherwise, too: for a model to use, "
        "once another has shown what the recipe makes of names it has never seen.",
        False,
    )


_LIKE = (
    "Images of the quality that will be searched, showing similar things, in a layout that --data "
    "takes, where those of --data are reduced copies: the features of reduced images have another "
    "mean. Repeat the option for several."
)


@dataclass(frozen=True, kw_only=True)
class SearchModelRun(LabelledRun):
    """A run whose result searches images on a given backbone."""

    like: tuple[Path, ...] = option(_LIKE, (), exists="folder")


@dataclass(frozen=True, kw_only=True)
class FlippedRun:
    """A run on the features of a fixed backbone."""

    flip: bool = option(
        "Do not train on horizontally flipped images as well. This halves the time to compute "
        "features; choose it when left and right matter in your captions.",
        True,
    )


@dataclass(frozen=True, kw_only=True)
class TextEncoderRun:
    """A run that trains new text encoders."""

    inputs: str = option(
        "The inputs of the text encoders, separated by commas. Leave some out to measure what they "
        "contribute.",
        "bow,word2vec,gru,sentence",
        metavar="LIST",
    )
    hidden: int | None = option(
        "The number of hidden units of the text encoders. Fewer units encode a query faster. "
        "`train backbone --from MODEL` prunes the model's text encoders to N units.",
        None,
        least=1,
        metavar="N",
    )
    pooling: Literal["attention", "mean", "last"] = option(
        "How the GRU's states become one vector. It hardly changes results.", "attention"
    )
    caption_loss_weight: float = option(
        "The weight of the loss between captions of one image, which improves search by caption. "
        "With 0, captions are only compared with images.",
        0.5,
        least=0,
    )


@dataclass(frozen=True, kw_only=True)
class BackboneTrainingRun(TrainingRun):
    """A run that trains a backbone, and writes a search model that uses it."""

    text_name: str | None = option(
        "The name of the search model that uses the new backbone.  [default: NAME-text]",
        None,
        metavar="NAME",
    )
    backbone_lr: float = option(
        "The peak learning rate of the backbone's last layer; the blocks before it have two thirds "
        "of it. Lower it when validation falls from the first epoch on.",
        3e-4,
    )

    def __post_init__(self) -> None:
        if self.search_model == self.name:
            raise TrainingProblem("the backbone and its text model need two names")

    @property
    def patience(self) -> int:
        """Epochs without a better validation: all of them."""
        return self.epochs

    @property
    def search_model(self) -> str:
        """The name of the search model."""
        return self.text_name or f"{self.name}-text"

    @property
    def written(self) -> dict[str, Path]:
        """The backbone and the search model."""
        return {self.name: self.folder, self.search_model: self.folder.parent / self.search_model}


@dataclass(frozen=True, kw_only=True)
class TextRun(FlippedRun, TextEncoderRun, SearchModelRun):
    """`capsearch train text`."""

    backbone: str | None = option(
        f"The backbone whose features to train on.  [default: {DEFAULT_BACKBONE}]",
        None,
        metavar="NAME",
    )
    from_: str | None = option(
        "Fine-tune the text encoders of this search model instead of training new ones, on the "
        "features of its own backbone. A tenth of the default --lr suits it.",
        None,
        metavar="MODEL",
    )
    loss: str = option(
        "The loss between captions and images: infonce, triplet, contrastive or mse. The --variant "
        "of a paper sets its own.",
        "infonce",
    )
    variant: str = option(
        "The model to train: shared is ours; w2vv, w2vv-attention, enhanced-w2vv and w2vv++ are "
        "those of the papers, for comparison.",
        "shared",
    )
    teacher: str | None = option(
        "A CLIP-like model, open_clip:MODEL or its export, whose space to learn. Its image tower "
        "becomes the backbone, and its text vectors teach the languages that it reads.",
        None,
        metavar="NAME",
    )
    sentences: tuple[Path, ...] = option(
        "Sentences without images, one a line, that the teacher reads. Repeatable.",
        (),
        exists="file",
    )
    distillation_weight: float = option(
        "The weight of the distance to the teacher's text vectors. With 0, only images teach.",
        5.0,
        least=0,
    )


@dataclass(frozen=True, kw_only=True)
class ProjectionRun(FlippedRun, SearchModelRun):
    """`capsearch train projection`."""

    backbone: str = option("The backbone whose features to project.", metavar="NAME")
    text: str | None = option(
        "The text model whose space to project into.  [default: the built-in model]",
        None,
        metavar="NAME",
    )


@dataclass(frozen=True, kw_only=True)
class BackboneRun(TextEncoderRun, BackboneTrainingRun):
    """`capsearch train backbone`."""

    from_: str = option(
        "The initial weights: lite0, lite1, lite2 or tinyvit for a network pretrained on ImageNet "
        "(larger ones are more accurate and slower; tinyvit needs `capsearch models install "
        "tinyvit`), or a text model, which is fine-tuned with its backbone.",
        "lite2",
        metavar="NAME",
    )
    epochs: int = option(
        "How often to go through the training images while fine-tuning the backbone. With 0 it "
        "stays pretrained.",
        7,
        least=0,
    )
    frozen_epochs: int = option(
        "Epochs before that with a frozen backbone, in which new text encoders are trained. They "
        "take little time and protect the backbone from gradients of untrained text encoders.",
        3,
        least=0,
    )
    lr: float = option("The peak learning rate of everything but the backbone.", 5e-4)
    generation_loss_weight: float = option(
        "The weight of the loss of an LSTM that writes captions from the features, which trains "
        "the backbone jointly for captions (Zhu 2016). With 0 there is none.",
        0.0,
        least=0,
    )


_BFLOAT16 = (
    "Compute the network in bfloat16: nearly twice as fast on processors with AVX-512 BF16 or AMX, "
    "slower on others."
)


@dataclass(frozen=True, kw_only=True)
class StudentRun(BackboneTrainingRun, SearchModelRun):
    """`capsearch train student`."""

    teacher: str = option(
        "The search model whose text encoders and image vectors the student learns from.",
        metavar="NAME",
    )
    from_: str = option(
        "The pretrained network of the student: tinyvit, lite0, lite1 or lite2. Or an earlier "
        "student's search model, to train it on.",
        "tinyvit",
        metavar="NAME",
    )
    epochs: int = option("How often to go through the training images.", 5, least=1)
    lr: float = option("The peak learning rate of the projection.", 5e-4)
    distillation_weight: float = option(
        "The weight of the distance to the teacher's image vectors. With 0, only captions teach.",
        5.0,
        least=0,
    )
    bfloat16: bool = option(_BFLOAT16, False)


_HEAD_BACKBONE = "The backbone whose features to train on.  [default: that of the built-in model]"


@dataclass(frozen=True, kw_only=True)
class TagsRun(FlippedRun, LabelledRun):
    """`capsearch train tags`."""

    backbone: str | None = option(_HEAD_BACKBONE, None, metavar="NAME")
    variant: str = option(
        "The network: cascade (English tags first, whose scores are inputs of the other "
        "languages), multi-task (one hidden layer for all) or mlp (one network a language).",
        "cascade",
    )
    hidden: int = option(
        "The units of each hidden layer. Fewer make a smaller model.", 1024, least=1
    )
    only_said: bool = option(
        "Count as a tag only what captions and human tags say, as the COCO-CN paper does: no "
        "labelled objects, and an animal is absent where a cat is named. To compare with the "
        "paper.",
        False,
    )
    min_count: int = option(
        "A word becomes a tag when it is said of this many training images (COCO-CN: 20). Lower it "
        "for small data sets.",
        20,
        least=1,
    )
    lr: float = option("The peak learning rate. Lower it when the loss diverges.", 5e-4)

    captions_per_image = 1  # recorded in the card


@dataclass(frozen=True, kw_only=True)
class CaptionRun(TrainingRun):
    """`capsearch train caption`."""

    backbone: str | None = option(_HEAD_BACKBONE, None, metavar="NAME")
    decoder: str = option(
        "The decoder: transformer (attends to the feature map) or a paper's: show-and-tell, m-rnn "
        "or multimodal-rnn, which see the pooled feature.",
        "transformer",
    )
    scheme: str = option(
        "The training scheme: sequential (all captions, then those written for these photographs), "
        "mixed, artificial-token, transfer, alternate or monolingual; or, after one of them, "
        "self-training (the captioner writes captions for the training images, and learns from "
        "those that agree with people's in any language, too) or self-critical (captions are "
        "sampled and rewarded for CIDEr-D).",
        "sequential",
    )
    from_: str | None = option(
        "A captioner to train on, with its backbone, words, decoder and tags, instead of a new "
        "one. The weights between old and new that write the best captions are kept.",
        None,
        metavar="NAME",
    )
    tags: str | None = option(
        "A tagger whose tags are an input beside the image. It is needed to write captions, too.",
        None,
        metavar="NAME",
    )
    width: int = option(
        "The units of the decoder. Fewer make a smaller and faster model.", 256, least=1
    )
    layers: int = option(
        "The layers of a transformer decoder. Fewer make a smaller and faster model.", 3, least=1
    )
    beam: int = option(
        "Hypotheses that the finished model's beam search keeps. With 1 it is greedy.", 3, least=1
    )
    lr: float = option("The peak learning rate. Lower it when the loss diverges.", 5e-4)
    bfloat16: bool = option(_BFLOAT16, False)

    captions_per_image = 1  # of each language, drawn at each step


@dataclass(frozen=True, kw_only=True)
class CalibrationRun:
    """`capsearch calibrate`."""

    data: tuple[Path, ...] = option(
        "Folder of a data set. Repeatable: captions of the same image are merged.", exists="path"
    )
    labelled: tuple[Path, ...] = option(
        "A folder of images with labels instead of captions, whose names are queries to fit on as "
        "well. Repeat the option for several.",
        (),
        exists="folder",
    )
    all_concepts: bool = option(
        "The model was trained with --all-concepts: of --labelled, photographs were held out, and "
        "no concept was.",
        False,
    )
    like: tuple[Path, ...] = option(_LIKE, (), exists="folder")
    model: str | None = option(
        "Name or path (./DIR) of the model.  [default: the built-in one]", None, metavar="NAME"
    )
    split: str = option("The images to fit on: not those the model was trained on.", "val")
    bank_split: str = option(
        "Images and captions in general: what a query scores on them is its background.", "train"
    )
    cache: Path | None = option(
        "Folder for cached image features.  [default: your cache directory]", None
    )
    output: Path | None = option(
        "Where to write the result.  [default: your models folder, used from now on]", None
    )
