"""What the commands of `capsearch bench` are told: one dataclass a command.

A field is an option, as in `encoders.settings`. Imports nothing that `--help` would wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from capsearch.encoders.settings import option

MODEL = "Name or path (./DIR) of the model.  [default: the built-in one]"
SPLIT = "Split of the data to evaluate on."
PLOT = "Also plot {} (.png, .svg or .pdf); needs capsearch[bench]."


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What every measurement of quality reads."""

    data: tuple[Path, ...] = option(
        "Folder of a data set. Repeatable: captions of the same image are merged.", exists="path"
    )
    cache: Path | None = option(
        "Folder for cached image features.  [default: your cache directory]", None
    )


@dataclass(frozen=True, kw_only=True)
class LimitOptions(DataOptions):
    """Where images may be fewer than there are."""

    limit: int | None = option(
        "Use only the first N images of each split.", None, least=1, metavar="N"
    )


@dataclass(frozen=True, kw_only=True)
class EnrichedOptions:
    """Whether models describe the images first."""

    model: str | None = option(MODEL, None, metavar="NAME")
    enriched: bool = option(
        "Let the model's captioner and tagger describe the images first, as `capsearch index` "
        "does: what they write is evidence, too.",
        False,
    )


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """How captions and images are compared."""

    clm_weight: float | None = option(
        "Weight of CL in CLM.  [default: the model's, tuned for each language]",
        None,
        least=0,
        most=1,
    )
    descriptions: Literal["first", "all"] = option(
        "Captions that CL searches: the first of each image, as in the paper, or all of them.",
        "first",
    )
    unknown_words: bool = option(
        "Use only queries that contain a word outside the model's vocabulary.", False
    )


@dataclass(frozen=True, kw_only=True)
class RetrievalRun(RetrievalOptions, LimitOptions):
    """`capsearch bench retrieval`."""

    split: tuple[str, ...] = option(f"{SPLIT} Repeatable.")
    model: str | None = option(MODEL, None, metavar="NAME")
    plot: Path | None = option(PLOT.format("text-to-image MRR"), None, exists="new file")


@dataclass(frozen=True, kw_only=True)
class EvidenceRun(EnrichedOptions, LimitOptions):
    """`capsearch bench evidence`."""

    split: str = option(SPLIT)
    captioned_share: str = option(
        "Shares of the images that have captions.", "0,0.02,0.1,0.5,0.9,1", metavar="SHARE,..."
    )
    captions: int = option("Captions of each captioned image, at most.", 1, least=1, most=5)


@dataclass(frozen=True, kw_only=True)
class NamesOptions:
    """What is asked for, and by which scores."""

    queries: Literal["names", "synonyms", "templates", "spellings"] = option(
        "What is asked for each concept.", "names"
    )
    min_photos: int = option(
        "Ask only for concepts with N photographs.", 5, least=1, metavar="N"
    )  # P@5 can be 1
    all_concepts: bool = option(
        "The model was trained with --all-concepts: photographs are held out, no concept is.",
        False,
    )
    cosine: bool = option("Rank by the cosine alone, not by what a search ranks by.", False)


@dataclass(frozen=True, kw_only=True)
class NamesRun(NamesOptions, EnrichedOptions, DataOptions):
    """`capsearch bench names`."""

    split: Literal["test", "val"] = option(
        "Photographs and concepts held out: val to choose models, test to report them.", "test"
    )
    per_label: int | None = option(
        "Use only the first N photographs of each label.", None, least=1, metavar="N"
    )


@dataclass(frozen=True, kw_only=True)
class HeadsRun(LimitOptions):
    """Models that describe images, one beside the other."""

    split: str = option(SPLIT, "val")
    model: tuple[str, ...] = option(
        "Name or path (./DIR) of a trained model. Repeatable.", metavar="NAME"
    )
    plot: Path | None = option(PLOT.format("the models' training"), None, exists="new file")


@dataclass(frozen=True, kw_only=True)
class CaptionRun(HeadsRun):
    """`capsearch bench caption`."""

    train_split: str = option(
        "Split whose captions the nearest-neighbour baseline repeats.", "train"
    )
    no_baseline: bool = option("Leave the nearest-neighbour baseline out.", False)
    beam: int | None = option(
        "Hypotheses of the beam search; 1 is greedy.  [default: the model's]",
        None,
        least=1,
        metavar="N",
    )
    examples: int = option("Captions to print for each model and language.", 0, least=0)


@dataclass(frozen=True, kw_only=True)
class TagsRun(HeadsRun):
    """`capsearch bench tags`."""

    most: int | None = option(
        "Only the N most frequent tags of each language; COCO-CN has 655.",
        None,
        least=1,
        metavar="N",
    )


@dataclass(frozen=True, kw_only=True)
class SpeedRun:
    """`capsearch bench speed`."""

    part: tuple[
        Literal["command", "text", "images", "describe", "search", "indexing", "scale"], ...
    ] = option("Measure only this part; repeatable.  [default: all parts but scale]", ())
    model: str | None = option(MODEL, None, metavar="NAME")
    repeats: int = option("Number of measurements of each command, batch and search.", 15, least=1)
    size: tuple[int, ...] = option(
        "Images of a collection of --part scale; repeatable.  [default: 10000, 100000, 1000000]",
        (),
        least=100,
        metavar="IMAGES",
    )
    check: bool = option(
        "Exit with status 1 if a ratio to a baseline is more than 25 % worse than the committed "
        "figures, and name it.",
        False,
    )
    plot: Path | None = option(PLOT.format("the searches of --part scale"), None, exists="new file")
