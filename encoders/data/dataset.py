"""Caption data sets in one shape: images with captions in several languages.

    data = read(["DIR"], splits=["train", "val"])
    data = read([Source(Path("captions_train2014.json"), images=Path("train2014")),
                 Source(Path("stair_captions_v1.2_train.json"))])
    for image, content in data.split("val").contents(): ...

The layouts are those of `capsearch.encoders.data.layouts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from capsearch.encoders.data.archives import ImageStore
from capsearch.encoders.data.labels import split_of_photo
from capsearch.encoders.data.layouts import CaptionedImage, Source, layout_of
from capsearch.engine.errors import DataProblem, MissingSplit
from capsearch.engine.records import LANGUAGES

__all__ = ["CaptionDataset", "CaptionedImage", "Source", "read", "read_labelled"]

DEFAULT_SPLIT = "train"  # of images that no source assigns to a split


@dataclass(frozen=True)
class CaptionDataset:
    """Captioned images of one or several splits, and the store their files are read from."""

    images: tuple[CaptionedImage, ...]
    store: ImageStore = field(default_factory=ImageStore)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, in order of appearance."""
        return tuple(dict.fromkeys(image.split for image in self.images))

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of the captions: en, zh, ja first, others by name."""
        written = {language for image in self.images for language in image.captions}
        known = tuple(language for language in LANGUAGES if language in written)
        return (*known, *sorted(written - {*LANGUAGES}))

    def split(self, name: str) -> CaptionDataset:
        """The images of one split; DataProblem with the existing ones if it does not exist."""
        images = tuple(image for image in self.images if image.split == name)
        if not images:
            raise DataProblem(f"no split {name!r}; there is {', '.join(self.splits) or 'none'}")
        return replace(self, images=images)

    def first(self, count: int) -> CaptionDataset:
        """The first `count` images."""
        return self.only(self.images[:count])

    def only(self, images: Sequence[CaptionedImage]) -> CaptionDataset:
        """Some of the images."""
        return replace(self, images=tuple(images))

    def from_sources(self, *sources: str) -> CaptionDataset:
        """Only captions of these sources, and the images that have one; all of them for none."""
        if not sources:
            return self
        images = (
            replace(
                image,
                captions={
                    language: kept
                    for language, captions in image.captions.items()
                    if (kept := tuple(text for text in captions if text.source in sources))
                },
            )
            for image in self.images
        )
        return self.only([image for image in images if image.captions])

    def contents(self) -> Iterator[tuple[CaptionedImage, bytes]]:
        """Every image whose file exists, with its bytes, in the order of storage."""
        by_file = {image.file: image for image in self.images}
        for name, content in self.store.stream(by_file.keys()):
            yield by_file[name], content


def read(
    sources: Iterable[Source | Path | str],
    splits: Sequence[str] | None = None,
) -> CaptionDataset:
    """All sources as one data set, merged by image id; `splits` None takes every split.

    Captions add up, exact repeats are dropped. The first source that names a file or a split
    decides, except that an image in any source's test split is never in another split.
    DataProblem for an unknown layout, a split that no source has, or no image with captions.
    """
    merged: dict[str, CaptionedImage] = {}
    store = ImageStore()
    missing: list[MissingSplit] = []
    for given in sources:
        source = given if isinstance(given, Source) else Source(Path(given))
        layout = layout_of(source)
        try:
            for image in layout.read(source, splits):
                earlier = merged.get(image.id)
                merged[image.id] = image if earlier is None else merge(earlier, image)
        except MissingSplit as problem:
            missing.append(problem)
            continue
        store += layout.store(source, splits)
    if missing and not merged:
        raise missing[0]
    return _chosen(tuple(map(_complete, merged.values())), store, splits)


def read_labelled(
    sources: Iterable[Source | Path | str], all_concepts: bool = False
) -> CaptionDataset:
    """The images with a label that stands for concepts, split by what is held out of training.

    The splits are those of `capsearch.encoders.data.labels`: train, val and test, whatever
    the files are called. With `all_concepts` only photographs are held out. DataProblem if no
    label is known.
    """
    data = read(sources)
    images = tuple(
        replace(image, split=split_of_photo(image.id, () if all_concepts else image.concepts))
        for image in data.images
        if image.concepts
    )
    if not images:
        raise DataProblem(
            "no image with a known label: each record of SPLIT.jsonl.gz needs `label`, the name of "
            "a concept, or `set` and `label` of a published set"
        )
    return data.only(images)


def merge(first: CaptionedImage, second: CaptionedImage) -> CaptionedImage:
    """Two sources' records of one image; `read` documents which one decides."""
    both = (first, second)
    tested = next((image.split for image in both if image.split.startswith("test")), "")
    captions = {
        language: (*first.captions.get(language, ()), *second.captions.get(language, ()))
        for language in dict.fromkeys((*first.captions, *second.captions))
    }
    return CaptionedImage(
        id=first.id,
        split=tested or first.split or second.split,
        file=first.file or second.file,
        captions=captions,
        objects=_distinct((*first.objects, *second.objects)),
        tags_zh=_distinct((*first.tags_zh, *second.tags_zh)),
        labelled_set=first.labelled_set or second.labelled_set,
        concepts=_distinct((*first.concepts, *second.concepts)),
    )


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _complete(image: CaptionedImage) -> CaptionedImage:
    """With a split, and without repeated captions: the first of equal texts is kept."""
    captions = {
        language: tuple({caption.text: caption for caption in reversed(given)}.values())[::-1]
        for language, given in image.captions.items()
        if given
    }
    return replace(image, split=image.split or DEFAULT_SPLIT, captions=captions)


def _chosen(
    images: tuple[CaptionedImage, ...], store: ImageStore, splits: Sequence[str] | None
) -> CaptionDataset:
    everything = CaptionDataset(images, store)
    if not images:
        raise DataProblem("no image with captions found; check the folder, layout and splits")
    if splits is None:
        return everything
    chosen = [everything.split(name).images for name in splits]
    return replace(everything, images=tuple(image for part in chosen for image in part))
