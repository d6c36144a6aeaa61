"""XMP sidecars that Lightroom, digiKam and others read: captions and keywords, models' marked.

A sidecar is replaced only if it is as `capsearch export` wrote it: it holds a checksum of itself.
What a model wrote is listed again in properties of our own namespace, from which `sources.xmp`
knows that it is no person's, and `photoshop:CaptionWriter` names the model for everyone else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from capsearch.encoders import concepts
from capsearch.engine.records import GENERATED, Caption, Document, Tag
from capsearch.indexer.sources.xmp import CAPSEARCH

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
