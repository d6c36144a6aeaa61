"""An image with all that is known of it, and every rule by which a run changes that: no I/O.

Both stores read documents, change them by these methods and write what is different. A change that
is made twice is the same as made once, since a cluster may be sent it twice.

An image without a file is not found by any search, but keeps its vectors, captions and tags for a
while: it comes back at once when a file with the same content does. When a file gets new content
(edited EXIF, a crop), what people wrote about the old content follows to the new one. What a model
wrote is replaced when another model describes the image; what a person accepted or corrected is a
person's from then on; a caption that was rejected does not come back, whichever model writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, TypeAlias

from capsearch.encoders.text import concepts
from capsearch.engine.records import HAND, TAKEN_FROM, Caption, Document, ImageRecord, Tag, Vectors
from capsearch.indexer.sources.scan import ImageFile

if TYPE_CHECKING:
    from capsearch.indexer.store import EncodedImage

SIDECAR = "sidecar"
METADATA_SOURCES = ("exif", "iptc", "xmp")
CAPTIONS_FILES = ("csv", "coco")
FileFacts: TypeAlias = tuple[int, int, str]  # mtime_ns, size, ImageFile.sidecar_state
CaptionKey: TypeAlias = tuple[str, str, str]  # source, origin, text: a document has one of these
TagKey: TypeAlias = tuple[str, str, str]  # label, language, source


@dataclass(slots=True)
class StoredCaption:
    """A caption and its origin: the path of an image (sidecar), of a captions file, or ""."""

    caption: Caption
    origin: str = ""
    encoded: bool = False  # the text encoder has read it
    vector: Vectors | None = None  # None also without a known token, and where none was asked for

    @property
    def key(self) -> CaptionKey:
        """What no other caption of the document shares."""
        return self.caption.source, self.origin, self.caption.text


@dataclass(slots=True)
class StoredDocument:
    """One image. Vectors that were not asked for are None; a store leaves those as they are."""

    record: ImageRecord  # its paths are those of `files`
    feature: Vectors | None = None  # (F,) of the backbone
    vector: Vectors | None = None  # (D,)
    files: dict[str, FileFacts] = field(default_factory=dict)
    captions: dict[CaptionKey, StoredCaption] = field(default_factory=dict)  # in order of writing
    tags: dict[TagKey, Tag] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    past: dict[str, str] = field(default_factory=dict)  # paths, with the time it left them
    missing_since: str | None = None
    tagger: str = ""  # the models that described it last
    captioner: str = ""
    rejected: frozenset[str] = frozenset()  # generated captions that a person refused

    @classmethod
    def of(
        cls,
        document: Document,
        feature: Vectors | None = None,
        vector: Vectors | None = None,
        caption_vectors: Mapping[Caption, Vectors] | None = None,
    ) -> StoredDocument:
        """A document that no run has made: the next one opens its files, whose age is unknown."""
        known = caption_vectors or {}
        captions = [
            StoredCaption(caption, "", caption in known, known.get(caption))
            for caption in document.captions
        ]
        return cls(
            document.record,
            feature,
            vector,
            dict.fromkeys(document.record.paths, (0, document.record.size_bytes, "")),
            {stored.key: stored for stored in captions},
            {_tag_key(tag): tag for tag in document.tags},
            dict(document.metadata),
        )

    def document(self) -> Document:
        """As searches return it: captions by people first, tags by falling confidence."""
        people_first = sorted(
            (stored.caption for stored in self.captions.values()), key=lambda text: text.generated
        )
        tags = sorted(
            self.tags.values(), key=lambda tag: (-tag.confidence, tag.label, tag.language)
        )
        record = replace(self.record, paths=tuple(sorted(self.files)))
        return Document(record, tuple(dict.fromkeys(people_first)), tuple(tags), self.metadata)

    # Files

    def put_image(self, encoded: EncodedImage) -> int:
        """Its vectors, and what its metadata says; returns the number of new captions."""
        metadata = encoded.image.metadata
        self.feature, self.vector = encoded.feature, encoded.vector
        self.record = replace(self.record, taken_at=metadata.taken_at)
        self.tags = {
            key: tag for key, tag in self.tags.items() if tag.source not in METADATA_SOURCES
        }
        self.add_tags(metadata.tags)
        self.metadata = encoded.image.fields
        return self.replace_captions(METADATA_SOURCES, "", metadata.captions)

    def arrive(self, file: ImageFile, captions: Sequence[Caption]) -> int:
        """A file that holds the image, with its sidecars' captions; how many are new."""
        self.files[file.path] = (file.mtime_ns, file.size, file.sidecar_state)
        self.past.pop(file.path, None)
        self.missing_since = None
        self._drop_other_sidecars()
        return self.replace_captions((SIDECAR,), file.path, captions)

    def leave(self, path: str) -> None:
        """A file no longer holds the image. Without any, all that is known of it stays."""
        if self.files.pop(path, None) is None:
            return
        self.past[path] = moment = now()
        self._drop_other_sidecars()
        if not self.files:
            self.missing_since = moment

    def forget_files(self, chosen: Callable[[str], bool]) -> None:
        """As if the image had never been at some paths."""
        self.files = {path: state for path, state in self.files.items() if not chosen(path)}
        self.past = {path: moment for path, moment in self.past.items() if not chosen(path)}
        self._drop_other_sidecars()

    def follow(self, before: StoredDocument) -> int:
        """Takes over what people wrote and rejected about the image that a file held before.

        Sidecars and metadata are read anew, and models describe only what they have seen. Returns
        the number of new captions.
        """
        tags = {key: tag for key, tag in before.tags.items() if _by_people(tag.source)}
        self.tags = tags | self.tags
        self.rejected |= before.rejected
        written = [
            StoredCaption(stored.caption, stored.origin)
            for key, stored in before.captions.items()
            if _by_people(stored.caption.source) and key not in self.captions
        ]
        self.captions |= {stored.key: stored for stored in written}
        return len(written)

    # Texts by people

    def replace_captions(
        self, sources: Collection[str], origin: str, captions: Iterable[Caption]
    ) -> int:
        """Makes `captions` the only ones of these sources and this origin; how many are new.

        Others keep their vectors, but for those whose language has changed.
        """
        wanted = {(caption.source, origin, caption.text): caption for caption in captions}
        self.captions = {
            key: stored
            for key, stored in self.captions.items()
            if key in wanted or stored.origin != origin or stored.caption.source not in sources
        }
        return sum(self._add(caption, origin) for caption in wanted.values())

    def put_named(self, origin: str, captions: Iterable[Caption]) -> int:
        """Makes `captions` the only ones of a captions file; how many are new.

        An image without a file matches no name, and keeps what it has.
        """
        return self.replace_captions(CAPTIONS_FILES, origin, captions) if self.files else 0

    def add_tags(self, tags: Iterable[Tag]) -> None:
        """More tags out of the image's metadata or sidecars; of equal ones the last counts."""
        self.tags |= {_tag_key(tag): tag for tag in tags}

    # Texts by models, and what people say about them

    def put_generated_tags(self, model: str, tags: Sequence[Tag]) -> None:
        """Makes these the only generated tags; of equal labels the first counts."""
        self.tagger = model
        by_people = {key: tag for key, tag in self.tags.items() if not tag.generated}
        self.tags = by_people | {_tag_key(tag): tag for tag in reversed(tags)}

    def put_generated_captions(self, model: str, captions: Sequence[Caption]) -> int:
        """Makes these the only generated captions, but for what people decided; how many.

        One that is there already keeps its vector and gets the new probability.
        """
        self.captioner = model
        kept = self._undecided(captions)
        new = {(caption.source, "", caption.text): caption for caption in reversed(kept)}
        self.captions = {
            key: stored
            for key, stored in self.captions.items()
            if not stored.caption.generated or key in new
        }
        for caption in reversed(new.values()):
            self._add(caption, "")
        return len(kept)

    def forget_models(self) -> None:
        """Forgets which models have described it; what they wrote stays until they do again."""
        self.tagger = self.captioner = ""

    def accept(self, caption: Caption, text: str, language: str) -> bool:
        """A generated caption becomes a person's; False if there is no such caption."""
        if not self._drop(caption):
            return False
        self._add(Caption(text, language, HAND), "")
        if text != caption.text:  # a corrected one was wrong
            self.rejected |= {caption.text}
        return True

    def reject(self, caption: Caption) -> bool:
        """A generated caption goes and does not come back; False if there is none."""
        if not self._drop(caption):
            return False
        self.rejected |= {caption.text}
        return True

    def take_reviews(self, before: StoredDocument) -> None:
        """Takes over what people have said about the captions of another copy of the image."""
        self.rejected |= before.rejected
        for key, stored in before.captions.items():
            if stored.caption.source == HAND:
                self.captions.setdefault(key, stored)
        generated = [s.caption for s in self.captions.values() if s.caption.generated]
        left = set(self._undecided(generated))
        self.captions = {
            key: stored
            for key, stored in self.captions.items()
            if not stored.caption.generated or stored.caption in left
        }

    def _undecided(self, captions: Iterable[Caption]) -> list[Caption]:
        """Generated captions but for those that are empty or that people rejected, and those in
        languages in which a person has accepted or written one by hand."""
        by_hand = {
            stored.caption.language
            for stored in self.captions.values()
            if stored.caption.source == HAND
        }
        return [
            caption
            for caption in captions
            if caption.text
            and caption.text not in self.rejected
            and caption.language not in by_hand
        ]

    def _add(self, caption: Caption, origin: str) -> int:
        """1 if the caption or its language is new, 0 if not: then it keeps its vector."""
        stored = self.captions.get((caption.source, origin, caption.text))
        if stored is not None and stored.caption.language == caption.language:
            stored.caption = caption
            return 0
        new = StoredCaption(caption, origin)
        self.captions[new.key] = new
        return 1

    def _drop(self, caption: Caption) -> bool:
        stored = self.captions.get((caption.source, "", caption.text))
        if stored is None or stored.caption != caption:
            return False
        del self.captions[stored.key]
        return True

    def _drop_other_sidecars(self) -> None:
        """Captions of sidecars of paths that left, unless the image has no file at all."""
        if self.files:
            self.captions = {
                key: stored
                for key, stored in self.captions.items()
                if stored.caption.source != SIDECAR or stored.origin in self.files
            }


def now() -> str:
    """The time as documents have it."""
    return _moment(datetime.now(timezone.utc))


def days_ago(days: float) -> str:
    """What `missing_since` is at most of images that have been missing for so many days."""
    return _moment(datetime.now(timezone.utc) - timedelta(days=days))


def texts_of(document: Document) -> Iterator[str]:
    """What people wrote about an image, and what its files and folders are called."""
    yield from (caption.text for caption in document.captions if not caption.generated)
    yield from (tag.label for tag in document.tags if not tag.generated)
    yield from (text for key, text in document.metadata.items() if key != TAKEN_FROM)
    yield from (_path_text(path) for path in document.record.paths)


def generated_texts_of(document: Document) -> Iterator[str]:
    """What models wrote about an image: captions, and the names of tags in every language."""
    yield from (caption.text for caption in document.captions if caption.generated)
    for tag in document.tags:
        if tag.generated and tag.concept in concepts.all_concepts():
            for names in concepts.by_id(tag.concept).names.values():
                yield from names
        elif tag.generated:
            yield tag.label


def _path_text(path: str) -> str:
    """The part of a path that says something: the file's name and the two folders above."""
    *folders, name = path.replace("\\", "/").split("/")
    return " ".join([*folders[-2:], name.rpartition(".")[0] or name])


def _moment(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


def _tag_key(tag: Tag) -> TagKey:
    return tag.label, tag.language, tag.source


def _by_people(source: str) -> bool:
    """Whether a person wrote it in a captions file or in capsearch: it is not read from the image
    or beside it, and no model's."""
    generated = Caption("", "", source).generated
    return source not in (SIDECAR, *METADATA_SOURCES) and not generated
