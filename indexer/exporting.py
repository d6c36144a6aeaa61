"""Captions and tags out of an index: COCO JSON, CSV, text files, XMP sidecars.

Everywhere what models wrote is marked with the model's name, and our own readers do not take it for
a person's when they read an export again. Files that are not ours are never overwritten.

XMP sidecars that Lightroom, digiKam and others read: captions and keywords, models' marked.

A sidecar is replaced only if it is as `capsearch export` wrote it: it holds a checksum of itself.
What a model wrote is listed again in properties of our own namespace, from which `sources.xmp`
knows that it is no person's, and `photoshop:CaptionWriter` names the model for everyone else.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path, PurePath
from typing import Any, Literal, Protocol
from xml.sax.saxutils import escape, quoteattr

from capsearch.encoders import atomic
from capsearch.encoders.text import concepts
from capsearch.engine.errors import IndexProblem
from capsearch.engine.protocols import Backend
from capsearch.engine.records import GENERATED, LANGUAGES, Caption, Document, Filters, Tag
from capsearch.indexer.sources.blocks import CAPSEARCH
from capsearch.indexer.sources.scan import Skipped

_CHECKSUM = re.compile(r'capsearch:checksum="([0-9a-f]*)"')
_UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0
_PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="capsearch">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
    xmlns:digiKam="http://www.digikam.org/ns/1.0/"
    xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/"
    xmlns:capsearch="{namespace}"
    capsearch:checksum="">
{properties}  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def packet(document: Document, languages: Sequence[str]) -> str:
    """An XMP packet with captions and tags of an image in these languages.

    One caption a language, people's before models'; the first language is the default. Tags of
    concepts are named in the languages, and stand below their broader concepts in the hierarchy.
    """
    captions = list(_best(document.captions, languages))
    people = {one.text for one in document.captions if not one.generated}
    labels = {_level(tag.label) for tag in document.tags if not tag.generated}
    chains = [chain for tag in document.tags for chain in _chains(tag, languages)]
    levels = {level for chain in chains for level in chain}
    default = [("x-default", captions[0].text)] if captions else []
    properties = [
        _list("dc:description", "Alt", default + [(one.language, one.text) for one in captions]),
        _bag("dc:subject", dict.fromkeys(chain[-1] for chain in chains)),
        _bag("lr:hierarchicalSubject", dict.fromkeys("|".join(one) for one in chains)),
        _list(
            "digiKam:TagsList", "Seq", [("", one) for one in dict.fromkeys(map("/".join, chains))]
        ),
        _writer(captions),
        _bag(
            "capsearch:generatedCaptions",
            (one.text for one in captions if one.generated and one.text not in people),
        ),
        _bag("capsearch:generatedTags", sorted(levels - labels)),
    ]
    text = _PACKET.format(namespace=CAPSEARCH, properties="".join(properties))
    return text.replace('checksum=""', f'checksum="{_checksum(text)}"', 1)


def is_ours(path: Path) -> bool:
    """Whether a file is a sidecar that `packet` made, unchanged since."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    found = _CHECKSUM.search(text)
    return found is not None and found[1] == _checksum(_CHECKSUM.sub('capsearch:checksum=""', text))


def _best(captions: Sequence[Caption], languages: Sequence[str]) -> Iterator[Caption]:
    """For each language the first caption by a person, or else the surest by a model."""
    for language in languages:
        found = [one for one in captions if one.language == language]
        ranked = sorted(found, key=lambda one: (one.generated, -one.confidence))
        yield from ranked[:1]


def _chains(tag: Tag, languages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Names from the broadest concept down to the tag; a person's tag also as it was written."""
    if not tag.generated or not tag.concept:
        yield (_level(tag.label),)
    ids = [tag.concept] if tag.concept in concepts.all_concepts() else []
    while ids and concepts.by_id(ids[0]).broader:
        ids.insert(0, concepts.by_id(ids[0]).broader[0])
    for language in languages if ids else ():
        yield tuple(_level(concepts.by_id(one).name(language)) for one in ids)


def _level(name: str) -> str:
    """A name without what separates the levels of a hierarchy."""
    return re.sub(r"\s*[|/]\s*", " ", name)


def _writer(captions: Sequence[Caption]) -> str:
    models = dict.fromkeys(one.source.removeprefix(GENERATED) for one in captions if one.generated)
    if not models:
        return ""
    text = escape(f"capsearch, by model: {', '.join(models)}")
    return f"   <photoshop:CaptionWriter>{text}</photoshop:CaptionWriter>\n"


def _bag(name: str, texts: Iterable[str]) -> str:
    return _list(name, "Bag", [("", text) for text in texts])


def _list(name: str, kind: str, items: Sequence[tuple[str, str]]) -> str:
    """A property with items, each with its language or ""; nothing if there are none."""
    if not items:
        return ""
    lines = "".join(f"     <rdf:li{_language(code)}>{_text(one)}</rdf:li>\n" for code, one in items)
    return f"   <{name}>\n    <rdf:{kind}>\n{lines}    </rdf:{kind}>\n   </{name}>\n"


def _language(code: str) -> str:
    return f" xml:lang={quoteattr(code)}" if code else ""


def _text(text: str) -> str:
    return escape(_UNWRITABLE.sub(" ", text))


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Collection(Protocol):
    """What is read of a collection, in an index folder or in a cluster."""

    @property
    def backend(self) -> Backend:
        """Looks documents up."""
        ...

    def image_paths(self, filters: Filters) -> Sequence[tuple[str, str]]:
        """(first path, id) of the images that pass filters and have a file, sorted."""
        ...

    def roots(self) -> Sequence[Path]:
        """The folders indexed so far."""
        ...


XmpNames = Literal["lightroom", "digikam"]
COLUMNS = ("file", "caption", "tag", "language", "source", "confidence", "concept")
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """What is exported."""

    folders: tuple[Path, ...] = ()  # images below these; (): all
    written_by: Literal["people", "models"] | None = None  # None: both
    languages: tuple[str, ...] = LANGUAGES  # of captions, and of the names of tags


@dataclass(frozen=True, slots=True)
class Exported:
    """Sidecars that were written, and files that were left as they are."""

    written: int
    skipped: tuple[Skipped, ...]


def documents(collection: Collection, selection: Selection) -> Iterator[Document]:
    """The chosen images by path, with the chosen captions and tags; those with neither are left
    out."""
    folders = tuple(str(one.expanduser().resolve()) for one in selection.folders)
    ids = [image_id for _, image_id in collection.image_paths(Filters(folders=folders))]
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        found = collection.backend.lookup(chunk)
        for one in (_chosen(found[image_id], selection) for image_id in chunk if image_id in found):
            if one.captions or one.tags:
                yield one


def coco(collection: Collection, selection: Selection) -> str:
    """COCO captions JSON; tags have a list of their own beside the annotations."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    tags: list[dict[str, Any]] = []
    for number, one in enumerate(documents(collection, selection), start=1):
        record, name = one.record, _name(collection, one)
        images.append(
            {"id": number, "file_name": name, "width": record.width, "height": record.height}
        )
        for caption in one.captions:
            entry = {"id": len(annotations) + 1, "image_id": number, "caption": caption.text}
            annotations.append({**entry, **_facts(caption)})
        tags += [{"image_id": number, **asdict(tag)} for tag in _named(one, selection)]
    content = {"images": images, "annotations": annotations, "tags": tags}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def table(collection: Collection, selection: Selection) -> str:
    """CSV with COLUMNS: a line for each caption and for each tag."""
    output = StringIO(newline="")
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in documents(collection, selection):
        name = _name(collection, one)
        for text in one.captions:
            writer.writerow((name, text.text, "", *_facts(text).values(), ""))
        for tag in _named(one, selection):
            facts = (tag.language, tag.source, tag.confidence, tag.concept)
            writer.writerow((name, "", tag.label, *facts))
    return output.getvalue()


def text_files(collection: Collection, selection: Selection, folder: Path) -> Exported:
    """NAME.txt for each image in a folder laid out as the images are: captions, a line each, then
    a line of tags.

    Text has no room for marks, so a file beside its image would be read as a person's: it is
    refused with IndexProblem.
    """
    written, skipped = 0, list[Skipped]()
    for one in documents(collection, selection):
        target = (folder / _name(collection, one)).with_suffix(".txt").absolute()
        if any(Path(path).parent == target.parent.resolve() for path in one.record.paths):
            raise IndexProblem(
                f"{target} would be beside its image and taken for a person's captions; choose "
                "another folder, or XMP, which marks what models wrote"
            )
        labels = ", ".join(dict.fromkeys(tag.label for tag in _named(one, selection)))
        lines = [text.text for text in one.captions] + ([labels] if labels else [])
        content = "\n".join(lines) + "\n"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(target, content)
            written += 1
        elif target.read_bytes() != content.encode():
            skipped.append(Skipped(str(target), "is there already and was not changed"))
    return Exported(written, tuple(skipped))


def xmp_files(collection: Collection, selection: Selection, names: XmpNames) -> Exported:
    """XMP sidecars beside the images: NAME.xmp as Lightroom, NAME.jpg.xmp as digiKam calls them.

    A sidecar that this did not write, or that was changed since, is named and left as it is. So is
    the second of two images that would share one, such as IMG.CR2 and IMG.JPG in Lightroom.
    """
    written, skipped = set[Path](), list[Skipped]()
    for one in documents(collection, selection):
        content = packet(one, selection.languages)
        for path in map(Path, one.record.paths):
            target = path.with_suffix(".xmp") if names == "lightroom" else Path(f"{path}.xmp")
            if not path.is_file():
                skipped.append(Skipped(str(path), "is gone; run `capsearch index`"))
            elif target in written:
                skipped.append(Skipped(str(path), f"shares {target.name} with another image"))
            elif target.exists() and not is_ours(target):
                skipped.append(Skipped(str(target), "is not ours, or was edited; left as it is"))
            else:
                atomic.write_text(target, content)
                written.add(target)
    return Exported(len(written), tuple(skipped))


def _chosen(document: Document, selection: Selection) -> Document:
    def wanted(one: Caption | Tag) -> bool:
        return selection.written_by in (None, "models" if one.generated else "people")

    captions = tuple(
        one for one in document.captions if wanted(one) and one.language in selection.languages
    )
    return replace(document, captions=captions, tags=tuple(filter(wanted, document.tags)))


def _named(document: Document, selection: Selection) -> Iterator[Tag]:
    """Tags of models in each of the languages, people's as they wrote them."""
    for tag in document.tags:
        if not tag.generated or tag.concept not in concepts.all_concepts():
            yield tag
        else:
            known = concepts.by_id(tag.concept)
            for language in selection.languages:
                yield replace(tag, label=known.name(language), language=language)


def _facts(caption: Caption) -> dict[str, Any]:
    return {
        "language": caption.language,
        "source": caption.source,
        "confidence": caption.confidence,
    }


def _name(collection: Collection, document: Document) -> str:
    """The path of an image below the folder that was indexed, with slashes."""
    path = PurePath(document.record.path)
    below = [root for root in _roots(collection) if path.is_relative_to(root)]
    return (path.relative_to(below[0]) if below else PurePath(path.name)).as_posix()


def _roots(collection: Collection) -> Sequence[Path]:
    return [root if root.is_dir() else root.parent for root in collection.roots()]
