"""Caption data sets in one shape: photographs with sentences in several languages.

    data = read(["DIR"], splits=["train", "val"])
    data = read([Source(Path("captions_train2014.json"), pictures=Path("train2014")),
                 Source(Path("stair_captions_v1.2_train.json"))])
    for photo, content in data.split("val").pictures(): ...

The layouts are those of `capsearch.encoders.training.layouts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from capsearch.encoders.training.layouts import layout_of
from capsearch.encoders.training.photos import Photo, Source
from capsearch.encoders.training.pictures import Pictures
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import LANGUAGES, Caption

__all__ = ["CaptionData", "Photo", "Source", "read"]

DEFAULT_SPLIT = "train"  # of photos that no source places


@dataclass(frozen=True)
class CaptionData:
    """Photos of one or several splits, and where their pictures lie."""

    photos: tuple[Photo, ...]
    places: Pictures = field(default_factory=Pictures)

    def __len__(self) -> int:
        return len(self.photos)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are, in order of appearance."""
        return tuple(dict.fromkeys(photo.split for photo in self.photos))

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages there are captions in: en, zh, ja first, others by name."""
        found = {language for photo in self.photos for language in photo.captions}
        return tuple(sorted(found, key=_language_order))

    def split(self, name: str) -> CaptionData:
        """The photos of one split; DataProblem with the known ones if there is no such."""
        photos = tuple(photo for photo in self.photos if photo.split == name)
        if not photos:
            raise DataProblem(f"no split {name!r}; there is {', '.join(self.splits) or 'none'}")
        return replace(self, photos=photos)

    def first(self, count: int) -> CaptionData:
        """The first `count` photos."""
        return self.only(self.photos[:count])

    def only(self, photos: Sequence[Photo]) -> CaptionData:
        """Some of the photos."""
        return replace(self, photos=tuple(photos))

    def having(self, *languages: str) -> CaptionData:
        """The photos with a caption in every one of these languages."""
        chosen = (p for p in self.photos if all(p.captions.get(lang) for lang in languages))
        return replace(self, photos=tuple(chosen))

    def image_bytes(self, photo: Photo) -> bytes:
        """One photo's file. For many, `pictures` is quicker where archives are compressed."""
        return self.places.read(photo.file)

    def pictures(self) -> Iterator[tuple[Photo, bytes]]:
        """Every photo whose picture is there, with its bytes, in the order of storage."""
        by_file = {photo.file: photo for photo in self.photos}
        for name, content in self.places.stream(by_file.keys()):
            yield by_file[name], content


def read(
    sources: Iterable[Source | Path | str],
    splits: Sequence[str] | None = None,
) -> CaptionData:
    """All sources as one data set, merged by photo id; `splits` None takes every split.

    Captions add up, exact repeats once. The first source that names a file or a split
    decides, but a photo that any source tests on is never trained on. DataProblem for a
    layout that is not known, a split that is not there, or nothing at all.
    """
    merged: dict[str, Photo] = {}
    places = Pictures()
    for given in sources:
        source = given if isinstance(given, Source) else Source(Path(given))
        layout = layout_of(source)
        for photo in layout.read(source, splits):
            earlier = merged.get(photo.id)
            merged[photo.id] = photo if earlier is None else merge(earlier, photo)
        places += layout.places(source, splits)
    return _checked(tuple(map(_settled, merged.values())), places, splits)


def merge(one: Photo, other: Photo) -> Photo:
    """Two sources' knowledge of one photo; see `read` for which one decides."""
    languages = tuple(dict.fromkeys((*one.captions, *other.captions)))
    tested = next((p.split for p in (one, other) if p.split.startswith("test")), "")
    return Photo(
        id=one.id,
        split=tested or one.split or other.split,
        file=one.file or other.file,
        captions={lang: tuple(_both(one, other, lang)) for lang in languages},
        objects=tuple(dict.fromkeys((*one.objects, *other.objects))),
        tags_zh=tuple(dict.fromkeys((*one.tags_zh, *other.tags_zh))),
    )


def overlaps(data: CaptionData) -> Mapping[tuple[str, str], int]:
    """How many photos have captions in both languages, for every pair of them."""
    languages = data.languages
    return {
        (one, other): len(data.having(one, other))
        for at, one in enumerate(languages)
        for other in languages[at + 1 :]
    }


def _both(one: Photo, other: Photo, language: str) -> Iterator[Caption]:
    yield from one.captions.get(language, ())
    yield from other.captions.get(language, ())


def _distinct(captions: Iterable[Caption]) -> tuple[Caption, ...]:
    return tuple({caption.text: caption for caption in reversed(tuple(captions))}.values())[::-1]


def _settled(photo: Photo) -> Photo:
    captions = {language: _distinct(found) for language, found in photo.captions.items() if found}
    return replace(photo, split=photo.split or DEFAULT_SPLIT, captions=captions)


def _checked(
    photos: tuple[Photo, ...], places: Pictures, splits: Sequence[str] | None
) -> CaptionData:
    everything = CaptionData(photos, places)
    if not photos:
        raise DataProblem("no photo with captions found; check the folder, layout and splits")
    if splits is None:
        return everything
    chosen = [everything.split(name).photos for name in splits]
    return replace(everything, photos=tuple(photo for photos in chosen for photo in photos))


def _language_order(language: str) -> tuple[int, str]:
    known = language in LANGUAGES
    return (LANGUAGES.index(language) if known else len(LANGUAGES), language)
