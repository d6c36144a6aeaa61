"""Caption data sets in one shape: photographs with sentences in several languages.

    data = read(["DIR"], splits=["train", "val"])
    data = read([Source(Path("captions_train2014.json"), images=Path("train2014")),
                 Source(Path("stair_captions_v1.2_train.json"))])
    for photo, content in data.split("val").contents(): ...

The layouts are those of `capsearch.encoders.datasets.layouts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from capsearch.encoders.datasets.captioned import CaptionedImage, Source
from capsearch.encoders.datasets.image_store import ImageStore
from capsearch.encoders.datasets.layouts import layout_of
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import LANGUAGES, Caption

__all__ = ["CaptionDataset", "CaptionedImage", "Source", "read"]

DEFAULT_SPLIT = "train"  # of photos that no source places


@dataclass(frozen=True)
class CaptionDataset:
    """Photos of one or several splits, and where their images lie."""

    images: tuple[CaptionedImage, ...]
    places: ImageStore = field(default_factory=ImageStore)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are, in order of appearance."""
        return tuple(dict.fromkeys(photo.split for photo in self.images))

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages there are captions in: en, zh, ja first, others by name."""
        found = {language for photo in self.images for language in photo.captions}
        return tuple(sorted(found, key=_language_order))

    def split(self, name: str) -> CaptionDataset:
        """The photos of one split; DataProblem with the known ones if there is no such."""
        photos = tuple(photo for photo in self.images if photo.split == name)
        if not photos:
            raise DataProblem(f"no split {name!r}; there is {', '.join(self.splits) or 'none'}")
        return replace(self, images=photos)

    def first(self, count: int) -> CaptionDataset:
        """The first `count` photos."""
        return self.only(self.images[:count])

    def only(self, photos: Sequence[CaptionedImage]) -> CaptionDataset:
        """Some of the photos."""
        return replace(self, images=tuple(photos))

    def having(self, *languages: str) -> CaptionDataset:
        """The photos with a caption in every one of these languages."""
        chosen = (p for p in self.images if all(p.captions.get(lang) for lang in languages))
        return replace(self, images=tuple(chosen))

    def image_bytes(self, photo: CaptionedImage) -> bytes:
        """One photo's file. For many, `images` is quicker where archives are compressed."""
        return self.places.read(photo.file)

    def contents(self) -> Iterator[tuple[CaptionedImage, bytes]]:
        """Every photo whose image is there, with its bytes, in the order of storage."""
        by_file = {photo.file: photo for photo in self.images}
        for name, content in self.places.stream(by_file.keys()):
            yield by_file[name], content


def read(
    sources: Iterable[Source | Path | str],
    splits: Sequence[str] | None = None,
) -> CaptionDataset:
    """All sources as one data set, merged by photo id; `splits` None takes every split.

    Captions add up, exact repeats once. The first source that names a file or a split
    decides, but a photo that any source tests on is never trained on. DataProblem for a
    layout that is not known, a split that is not there, or nothing at all.
    """
    merged: dict[str, CaptionedImage] = {}
    places = ImageStore()
    for given in sources:
        source = given if isinstance(given, Source) else Source(Path(given))
        layout = layout_of(source)
        for photo in layout.read(source, splits):
            earlier = merged.get(photo.id)
            merged[photo.id] = photo if earlier is None else merge(earlier, photo)
        places += layout.places(source, splits)
    return _checked(tuple(map(_settled, merged.values())), places, splits)


def merge(one: CaptionedImage, other: CaptionedImage) -> CaptionedImage:
    """Two sources' knowledge of one photo; see `read` for which one decides."""
    languages = tuple(dict.fromkeys((*one.captions, *other.captions)))
    tested = next((p.split for p in (one, other) if p.split.startswith("test")), "")
    return CaptionedImage(
        id=one.id,
        split=tested or one.split or other.split,
        file=one.file or other.file,
        captions={lang: tuple(_both(one, other, lang)) for lang in languages},
        objects=tuple(dict.fromkeys((*one.objects, *other.objects))),
        tags_zh=tuple(dict.fromkeys((*one.tags_zh, *other.tags_zh))),
    )


def overlaps(data: CaptionDataset) -> Mapping[tuple[str, str], int]:
    """How many photos have captions in both languages, for every pair of them."""
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


def _settled(photo: CaptionedImage) -> CaptionedImage:
    captions = {language: _distinct(found) for language, found in photo.captions.items() if found}
    return replace(photo, split=photo.split or DEFAULT_SPLIT, captions=captions)


def _checked(
    photos: tuple[CaptionedImage, ...], places: ImageStore, splits: Sequence[str] | None
) -> CaptionDataset:
    everything = CaptionDataset(photos, places)
    if not photos:
        raise DataProblem("no photo with captions found; check the folder, layout and splits")
    if splits is None:
        return everything
    chosen = [everything.split(name).images for name in splits]
    return replace(everything, images=tuple(image for images in chosen for image in images))


def _language_order(language: str) -> tuple[int, str]:
    known = language in LANGUAGES
    return (LANGUAGES.index(language) if known else len(LANGUAGES), language)
