"""An image with everything that is known of it, and how runs of the pipeline change that.

What sqlite.writer and sqlite.writer do with rows is done here with one document.
Every change made twice is the same as made once, since a cluster may be sent it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from capsearch.engine.protocols import Head, NewDocument
from capsearch.engine.records import HAND, Caption, Document, ImageRecord, Tag, Vectors
from capsearch.indexer.pipeline import fields_of, record_of
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.enriched import undecided
from capsearch.indexer.sqlite.writer import METADATA_SOURCES, SIDECAR
from capsearch.indexer.store import EncodedImage


@dataclass(slots=True)
class StoredCaption:
    """A caption and its origin: the path of an image (sidecar), a captions file, or ""."""

    caption: Caption
    origin: str
    encoded: bool = False  # the text encoder has read it
    vector: Vectors | None = None  # None also without a known token


@dataclass(slots=True)
class Entry:
    """One document, while it is changed."""

    record: ImageRecord  # its paths are those of `files`
    feature: Vectors | None = None
    vector: Vectors | None = None
    files: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # mtime, size, sidecars
    captions: list[StoredCaption] = field(default_factory=list)
    tags: list[Tag] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    past: dict[str, str] = field(default_factory=dict)  # paths, with the time it left them
    missing_since: str | None = None
    enriched: Mapping[str, Any] | None = None  # as EnrichedTable.states has it

    @classmethod
    def of(cls, stored: NewDocument) -> Entry:
        """From a document; files of unknown age are opened again by the next run."""
        document, known = stored.document, stored.provenance
        files = {path: (mtime, size, state) for path, mtime, size, state in known.get("files", ())}
        unknown = dict.fromkeys(document.record.paths, (0, document.record.size_bytes, ""))
        rows = [
            (Caption(text, language, source, *confidence), origin, bool(encoded))
            for text, language, source, origin, encoded, *confidence in known.get("captions", ())
        ] or [(one, "", one in stored.caption_vectors) for one in document.captions]
        return cls(
            document.record,
            stored.feature,
            stored.vector,
            files or unknown,
            [StoredCaption(*row, stored.caption_vectors.get(row[0])) for row in rows],
            list(document.tags),
            dict(document.metadata),
            dict(known.get("past_files", ())),
            known.get("missing_since"),
            known.get("enriched"),
        )

    def document(self) -> NewDocument:
        """As it is written."""
        people_first = sorted(self.captions, key=lambda one: one.caption.generated)
        captions = tuple(dict.fromkeys(one.caption for one in people_first))
        tags = sorted(self.tags, key=lambda one: (-one.confidence, one.label, one.language))
        record = replace(self.record, paths=tuple(sorted(self.files)))
        vectors = {one.caption: one.vector for one in self.captions if one.vector is not None}
        provenance = {
            "files": [[path, *state] for path, state in sorted(self.files.items())],
            "captions": [
                [one.caption.text, one.caption.language, one.caption.source, one.origin,
                 int(one.encoded), one.caption.confidence]
                for one in self.captions
            ],
            "metadata": [[key, value] for key, value in sorted(self.metadata.items())],
            "past_files": [[path, moment] for path, moment in self.past.items()],
            "missing_since": self.missing_since,
            "enriched": self.enriched,
        }  # fmt: skip
        document = Document(record, captions, tuple(tags), self.metadata)
        return NewDocument(document, self.feature, self.vector, vectors, provenance)

    def put_image(self, new: EncodedImage) -> int:
        """Its vectors, and what its metadata says; returns the number of new captions."""
        said = new.image.metadata
        self.feature, self.vector = new.feature, new.vector
        self.record = replace(self.record, taken_at=record_of(new.image).taken_at)
        self.tags = [tag for tag in self.tags if tag.source not in METADATA_SOURCES]
        self.tags += [tag for tag in said.tags if tag not in self.tags]
        self.metadata = fields_of(new.image)
        return self.replace_captions(METADATA_SOURCES, "", said.captions)

    def arrive(self, file: ImageFile, captions: Sequence[Caption]) -> int:
        """A file that holds the image, with its sidecars' captions; how many are new."""
        self.files[file.path] = (file.mtime_ns, file.size, file.sidecar_state)
        self.past.pop(file.path, None)
        self.missing_since = None
        self._drop_other_sidecars()
        return self.replace_captions((SIDECAR,), file.path, captions)

    def leave(self, path: str) -> int:
        """A file no longer holds the image. Without any, all that is known of it stays."""
        if self.files.pop(path, None) is None:
            return 0
        self.past[path] = now()
        self._drop_other_sidecars()
        if not self.files:
            self.missing_since = self.missing_since or now()
        return 0

    def forget_files(self, chosen: Callable[[str], bool]) -> None:
        """As if the image had never been at some paths."""
        self.files = {path: state for path, state in self.files.items() if not chosen(path)}
        self.past = {path: moment for path, moment in self.past.items() if not chosen(path)}
        self._drop_other_sidecars()

    def follow(self, before: Entry) -> int:
        """Takes over what people wrote and rejected about the image that a file held before."""
        kept = [tag for tag in before.tags if _by_people(tag.source) and tag not in self.tags]
        self.tags += kept
        self._reject(before._rejected)
        written = [one for one in before.captions if _by_people(one.caption.source)]
        return sum(self._add(one.caption, one.origin) for one in written)

    def put_generated_tags(self, model: str, tags: Sequence[Tag]) -> None:
        """Makes these the only generated tags; of equal labels the first one counts."""
        self._mark("tagger", model)
        first = {(one.label, one.language, one.source): one for one in reversed(tags)}
        self.tags = [one for one in self.tags if not one.generated] + list(first.values())

    def put_generated_captions(self, model: str, captions: Sequence[Caption]) -> int:
        """Makes these the only generated captions, but for what people decided; how many."""
        self._mark("captioner", model)
        by_hand = {one.caption.language for one in self.captions if one.caption.source == HAND}
        kept = undecided(captions, self._rejected, by_hand)
        new = {(one.text, one.language, one.source): one for one in kept}
        left = [one for one in self.captions if not one.caption.generated or _key(one) in new]
        for one in left:
            one.caption = new.pop(_key(one), one.caption)  # with the new probability
        self.captions = left + [StoredCaption(one, "") for one in new.values()]
        return len(kept)

    def forget_models(self) -> None:
        """Forgets which models have described it; what they wrote stays until they do again."""
        self.enriched = {**(self.enriched or {}), "tagger": "", "captioner": ""}

    def accept(self, caption: Caption, text: str, language: str) -> bool:
        """A generated caption becomes a person's; False if there is no such caption."""
        if not self._drop(caption):
            return False
        self._add(Caption(text, language, HAND), "")
        if text != caption.text:  # a corrected one was wrong
            self._reject([caption.text])
        return True

    def reject(self, caption: Caption) -> bool:
        """A generated caption goes and does not come back; False if there is none."""
        if not self._drop(caption):
            return False
        self._reject([caption.text])
        return True

    def take_reviews(self, before: Entry) -> None:
        """Takes over what people have said about the captions of another copy of the image."""
        self._reject(before._rejected)
        by_hand = [one for one in before.captions if one.caption.source == HAND]
        known = {_key(one) for one in self.captions}
        self.captions += [one for one in by_hand if _key(one) not in known]
        generated = [one.caption for one in self.captions if one.caption.generated]
        languages = {one.caption.language for one in by_hand}
        left = set(undecided(generated, self._rejected, languages))
        self.captions = [
            one for one in self.captions if not one.caption.generated or one.caption in left
        ]

    def replace_captions(
        self, sources: Collection[str], origin: str, captions: Sequence[Caption]
    ) -> int:
        """Makes `captions` the only ones of these sources and this origin; how many are new."""
        current = {(one.source, one.text) for one in captions}
        self.captions = [
            one
            for one in self.captions
            if one.origin != origin
            or one.caption.source not in sources
            or (one.caption.source, one.caption.text) in current
        ]
        return sum(self._add(one, origin) for one in captions)

    def _add(self, caption: Caption, origin: str) -> int:
        """0 if it is there already, 1 if it or its language is new."""
        for one in self.captions:
            same = (one.caption.source, one.caption.text, one.origin)
            if same == (caption.source, caption.text, origin):
                if one.caption.language == caption.language:
                    return 0
                one.caption, one.encoded, one.vector = caption, False, None
                return 1
        self.captions.append(StoredCaption(caption, origin))
        return 1

    @property
    def _rejected(self) -> Sequence[str]:
        found: Sequence[str] = (self.enriched or {}).get("rejected", ())
        return found

    def _reject(self, texts: Sequence[str]) -> None:
        if texts:
            rejected = sorted({*self._rejected, *texts})
            self.enriched = {**(self.enriched or {}), "rejected": rejected}

    def _mark(self, head: Head, model: str) -> None:
        nobody = {"tagger": "", "captioner": ""}
        self.enriched = {**nobody, **(self.enriched or {}), head: model}

    def _drop(self, caption: Caption) -> bool:
        left = [one for one in self.captions if one.caption != caption]
        dropped = len(left) < len(self.captions)
        self.captions = left
        return dropped

    def _drop_other_sidecars(self) -> None:
        """Captions of sidecars of paths that left, unless the image has no file at all."""
        if self.files:
            self.captions = [
                one
                for one in self.captions
                if one.caption.source != SIDECAR or one.origin in self.files
            ]


def _key(one: StoredCaption) -> tuple[str, str, str]:
    return one.caption.text, one.caption.language, one.caption.source


def now() -> str:
    """The time as documents have it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _by_people(source: str) -> bool:
    """Sidecars and metadata are read anew; models describe only what they have seen."""
    generated = Caption("", "", source).generated
    return source not in (SIDECAR, *METADATA_SOURCES) and not generated
