"""Validation images and captions through a model, and collections drawn from them.

What queries score on the images of a data set, by every source of evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.features import FeatureCache, Report, decoded_batches, load_features
from capsearch.encoders.models.calibration import DocumentBank, best_scores
from capsearch.encoders.models.classifiers import ConceptClassifiers
from capsearch.encoders.models.registry import Model
from capsearch.encoders.text.concepts.mentions import mentioned
from capsearch.engine.protocols import Captioner, Enricher, TextEncoder
from capsearch.engine.records import EncodedText, ImageFeatures, Tag, Vectors
from capsearch.engine.vectors import strip_bias

Rows = NDArray[np.int64]
_TEXTS_A_BATCH = 256
NO_HEADS = Enricher()


@dataclass(frozen=True, slots=True)
class EncodedCaptions:
    """Captions of one language as queries and as documents; `image_rows[i]` is caption i's image.

    Rows are in the order of the images.
    """

    texts: tuple[str, ...]
    visual: Vectors  # (M, D) queries
    caption: Vectors  # (M, C) queries
    documents: Vectors  # (M, C)
    image_rows: Rows  # (M,)

    def at(self, rows: Rows) -> EncodedCaptions:
        """The captions in these rows only."""
        return EncodedCaptions(
            tuple(self.texts[row] for row in rows),
            self.visual[rows],
            self.caption[rows],
            self.documents[rows],
            self.image_rows[rows],
        )

    def of_images(self, images: Rows) -> EncodedCaptions:
        """The captions of these images only."""
        return self.at(np.flatnonzero(np.isin(self.image_rows, images)))

    def first_of_each(self, count: int = 1) -> EncodedCaptions:
        """The first captions of each image."""
        starts = np.searchsorted(self.image_rows, self.image_rows)  # rows ascend
        return self.at(np.flatnonzero(np.arange(len(self.image_rows)) - starts < count))


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """Images as documents, their captions by language, and the objects people labelled.

    `generated` are captions that the model's captioner wrote, `tags` what its tagger found.
    `classifiers` recognise concepts in `images`.
    """

    images: Vectors  # (N, D)
    captions: Mapping[str, EncodedCaptions]
    objects: tuple[tuple[str, ...], ...]  # () where nobody labelled any
    generated: Mapping[str, EncodedCaptions] = field(default_factory=dict)
    tags: tuple[tuple[Tag, ...], ...] = ()
    classifiers: ConceptClassifiers | None = None


def encode_images(
    model: Model,
    data: CaptionDataset,
    cache: FeatureCache | None = None,
    report: Report | None = None,
    enricher: Enricher = NO_HEADS,
    mean: Vectors | None = None,
) -> EncodedImages:
    """A data set through the model; images that cannot be read are left out.

    With an `enricher`, also what it writes about the images. With a `mean` (F,), features are
    moved so that this is theirs.
    """
    kept, features = load_features(model.image, data, cache, report)
    if mean is not None:
        features = features + (mean - features.mean(axis=0))
    languages = [one for one in kept.languages if one in model.text.languages]
    return EncodedImages(
        model.image.project(features),
        {one: encode_captions(model.text, kept, one) for one in languages},
        tuple(image.objects for image in kept.images),
        *described(model, enricher, kept, features, report),
    )


def described(
    model: Model,
    enricher: Enricher,
    data: CaptionDataset,
    features: Vectors,
    report: Report | None = None,
) -> tuple[dict[str, EncodedCaptions], tuple[tuple[Tag, ...], ...]]:
    """What an enricher writes about images: captions by language, and tags."""
    tagger, captioner = enricher.tagger, enricher.captioner
    return (
        generate_captions(model, captioner, data, report) if captioner else {},
        tagger.tag(ImageFeatures(features)) if tagger else (),
    )


def generate_captions(
    model: Model, captioner: Captioner, data: CaptionDataset, report: Report | None = None
) -> dict[str, EncodedCaptions]:
    """What a captioner writes about images, by language; nothing without feature maps."""
    row_of = {image.id: row for row, image in enumerate(data.images)}
    written: dict[str, list[tuple[int, str]]] = {one: [] for one in captioner.languages}
    done = 0
    for ids, pixels in decoded_batches(data, model.image.preprocess):
        features = model.image.feature_maps(pixels)
        if features.grid is None:
            return {}
        for image_id, captions in zip(ids, captioner.caption(features), strict=True):
            for caption in captions:
                written[caption.language].append((row_of[image_id], caption.text))
        done += len(ids)
        if report:
            report(done, len(data))
    return {
        language: _encoded(model.text, sorted(found, key=lambda one: one[0]), language)
        for language, found in written.items()
        if language in model.text.languages
    }


def as_indexed(model: Model, data: EncodedImages) -> EncodedImages:
    """The same vectors as the model indexes and searches now: with other penalties and weights."""
    captions = {}
    for language, one in data.captions.items():
        encoded = encode_texts(model.text, one.texts, language)
        documents = model.text.as_documents(encoded.caption)
        captions[language] = replace(one, caption=encoded.caption, documents=documents)
    return replace(data, images=model.image.project(strip_bias(data.images)), captions=captions)


def encode_captions(encoder: TextEncoder, data: CaptionDataset, language: str) -> EncodedCaptions:
    """Every caption in a language."""
    found = [
        (row, caption.text)
        for row, image in enumerate(data.images)
        for caption in image.captions.get(language, ())
    ]
    return _encoded(encoder, found, language)


def _encoded(
    encoder: TextEncoder, found: Sequence[tuple[int, str]], language: str
) -> EncodedCaptions:
    """(row of the image, text) of captions in the order of the images."""
    texts = tuple(text for _, text in found)
    encoded = encode_texts(encoder, texts, language)
    return EncodedCaptions(
        texts,
        encoded.visual,
        encoded.caption,
        encoder.as_documents(encoded.caption),
        np.array([row for row, _ in found], np.int64),
    )


def encode_texts(encoder: TextEncoder, texts: Sequence[str], language: str) -> EncodedText:
    """Many texts, a batch at a time."""
    starts = range(0, max(len(texts), 1), _TEXTS_A_BATCH)
    parts = [encoder.encode(texts[at : at + _TEXTS_A_BATCH], language) for at in starts]
    return EncodedText(
        visual=np.concatenate([part.visual for part in parts]),
        caption=np.concatenate([part.caption for part in parts]),
        known=tuple(known for part in parts for known in part.known),
    )


Floats = NDArray[np.float64]


def best_of_captions(scores: Vectors, owners: Rows, images: int) -> Floats:
    """(Q, M) caption scores -> (Q, N) the best of each image; NaN for images without any."""
    best = np.full((len(scores), images), -np.inf)
    for at, owner in enumerate(owners):
        best[:, owner] = np.maximum(best[:, owner], scores[:, at])
    return np.where(np.isneginf(best), np.nan, best)


def generated_scores(data: EncodedImages, queries: Vectors, images: Rows) -> dict[str, Vectors]:
    """(Q, N) scores of what the model wrote about each image, by language."""
    found = {}
    for language, captions in data.generated.items():
        kept = captions.of_images(images)
        owners = np.searchsorted(images, kept.image_rows)
        scores = best_of_captions(queries @ kept.documents.T, owners, len(images))
        found[language] = scores.astype(np.float32)
    return found


def tag_scores(
    data: EncodedImages, texts: Sequence[str], language: str, images: Rows
) -> Vectors | None:
    """(Q, N) how sure the model's tags are of what each query names; None without tags."""
    if not data.tags:
        return None
    tags = [data.tags[row] for row in images.tolist()]
    columns = {one: at for at, one in enumerate(sorted({t.concept for some in tags for t in some}))}
    table = np.zeros((len(tags), len(columns)), np.float32)  # (N, K)
    for row, some in enumerate(tags):
        for tag in some:
            table[row, columns[tag.concept]] = max(table[row, columns[tag.concept]], tag.confidence)
    scores = np.zeros((len(texts), len(tags)), np.float32)
    for at, text in enumerate(texts):
        mentions = _mentioned(text, language)
        named = [[columns[one] for one in ids if one in columns] for ids in mentions]
        for chosen in named:
            if chosen:
                scores[at] += table[:, chosen].max(axis=1) / len(named)
    return scores


def named_scores(
    data: EncodedImages,
    texts: Sequence[str],
    language: str,
    images: Rows,
    bank: DocumentBank,
) -> tuple[Floats | None, Floats | None]:
    """(Q, N) what classifiers say of what each query names, and (Q,) of unrelated images."""
    found = data.classifiers
    if found is None:
        return None, None
    images_scores = found.scores(texts, language, data.images[images])
    return images_scores, best_scores(found.scores(texts, language, bank.images))


@lru_cache(maxsize=100_000)
def _mentioned(text: str, language: str) -> tuple[frozenset[str], ...]:
    return mentioned(text, language)


def backgrounds(bank: DocumentBank, visual: Vectors, caption: Vectors) -> tuple[Floats, Floats]:
    """(Q,) what queries score on unrelated images, and on unrelated captions."""
    encoded = EncodedText(visual, caption, (True,) * len(visual))
    found = [bank.background(encoded, row) for row in range(len(visual))]
    return (
        np.array([one["image"] for one in found]),
        np.array([one["caption"] for one in found]),
    )
