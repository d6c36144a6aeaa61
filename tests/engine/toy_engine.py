"""A search engine over toy images and captions, in memory."""

from __future__ import annotations

from capsearch.engine.fakes import FakeBackend, FakeImageEncoder, FakeTextEncoder, colour_image
from capsearch.engine.records import Caption, Document, ImageRecord
from capsearch.engine.search import SearchEngine

WEIGHT, FLOOR = 0.4, 0.1  # of the fake text encoder
IMAGES = {
    "blue": ("blue",),
    "red": ("red",),
    "red-blue": ("red", "blue"),
    "white": ("white",),
}
CAPTIONS = (
    ("red", Caption("a red car", "en", "sidecar")),
    ("white", Caption("一只红色的猫", "zh", "sidecar")),
    ("white", Caption("a dog", "en", "model:fake")),
)


def build(images=IMAGES, captions=CAPTIONS, penalty=0.0, evidence=None) -> SearchEngine:
    encoder = FakeImageEncoder(penalty=penalty)
    words = FakeTextEncoder(penalty=penalty, evidence=evidence)
    documents = {
        name: Document(
            ImageRecord(name, (f"/p/{name}.png",), 16, 16, 9, "PNG"),
            tuple(caption for owner, caption in captions if owner == name),
        )
        for name in images
    }
    vectors = {
        name: encoder.project(encoder.features([colour_image(*colours)]))[0]
        for name, colours in images.items()
    }
    encoded = [
        (owner, caption, words.as_documents(words.encode([caption.text], caption.language).caption))
        for owner, caption in captions
    ]
    rows = [(owner, caption, vectors[0]) for owner, caption, vectors in encoded]
    return SearchEngine(FakeBackend(documents, vectors, rows), encoder, words)


def found(result) -> dict[str, float]:
    return {hit.image_id: hit.score for hit in result.hits}
