"""Caption data sets in one shape: images with captions in several languages.

    data = read(["DIR"], splits=["train", "val"])
    data = read([Source(Path("captions_train2014.json"), images=Path("train2014")),
                 Source(Path("stair_captions_v1.2_train.json"))])
    for image, content in data.split("val").contents(): ...

The layouts are those of `capsearch.encoders.data.layouts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from capsearch.encoders.data.archives import ImageStore
from capsearch.encoders.data.labels import split_of_photo
from capsearch.encoders.data.layouts import CaptionedImage, Source, layout_of
from capsearch.engine.errors import DataProblem, MissingSplit
from capsearch.engine.records import LANGUAGES, Caption

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
        found = {language for image in self.images for language in image.captions}
        return tuple(sorted(found, key=_language_order))

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

    def having(self, *languages: str) -> CaptionDataset:
        """The images with a caption in every one of these languages."""
        chosen = (
            image for image in self.images if all(image.captions.get(lang) for lang in languages)
        )
        return replace(self, images=tuple(chosen))

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
                    if (kept := tuple(one for one in captions if one.source in sources))
                },
            )
            for image in self.images
        )
        return self.only([image for image in images if image.captions])

    def image_bytes(self, image: CaptionedImage) -> bytes:
        """One image's file. For many, `contents` is faster where archives are compressed."""
        return self.store.read(image.file)

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


def merge(one: CaptionedImage, other: CaptionedImage) -> CaptionedImage:
    """Two sources' records of one image; `read` documents which one decides."""
    languages = tuple(dict.fromkeys((*one.captions, *other.captions)))
    tested = next((part.split for part in (one, other) if part.split.startswith("test")), "")
    return CaptionedImage(
        id=one.id,
        split=tested or one.split or other.split,
        file=one.file or other.file,
        captions={lang: tuple(_both(one, other, lang)) for lang in languages},
        objects=tuple(dict.fromkeys((*one.objects, *other.objects))),
        tags_zh=tuple(dict.fromkeys((*one.tags_zh, *other.tags_zh))),
        labelled_set=one.labelled_set or other.labelled_set,
        concepts=tuple(dict.fromkeys((*one.concepts, *other.concepts))),
    )


def overlaps(data: CaptionDataset) -> Mapping[tuple[str, str], int]:
    """How many images have captions in both languages, for every pair of languages."""
    languages = data.languages
    return {
        (one, other): len(data.having(one, other))
        for at, one in enumerate(languages)
        for other in languages[at + 1 :]
    }


def _both(one: CaptionedImage, other: CaptionedImage, language: str) -> Iterator[Caption]:
    yield from one.captions.get(language, ())
    yield from other.captions.get(language, ())


def _distinct(captions: Iterable[Caption]) -> tuple[Caption, ...]:
    return tuple({caption.text: caption for caption in reversed(tuple(captions))}.values())[::-1]


def _complete(image: CaptionedImage) -> CaptionedImage:
    """With a split, and without repeated captions."""
    captions = {language: _distinct(found) for language, found in image.captions.items() if found}
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


def _language_order(language: str) -> tuple[int, str]:
    known = language in LANGUAGES
    return (LANGUAGES.index(language) if known else len(LANGUAGES), language)
