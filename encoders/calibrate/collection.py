"""Data sets through a model: images, captions and what models write, as an index has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.features import FeatureCache, Report, decoded_batches, load_features
from capsearch.encoders.models.calibration import ConceptClassifiers
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.scores import CaptionRows, Documents, Queries, Rows, encode_texts
from capsearch.encoders.text.concepts import broader
from capsearch.engine.protocols import Captioner, Enricher, TextEncoder
from capsearch.engine.records import ImageFeatures, Tag, Vectors
from capsearch.engine.vectors import strip_bias

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

    def queries(self, language: str) -> Queries:
        """The captions as queries."""
        return Queries(language, self.texts, self.visual, self.caption)

    def among(self, images: Rows) -> CaptionRows:
        """The captions of these images as documents; `images` ascend."""
        chosen = self.of_images(images)
        return CaptionRows(chosen.documents, np.searchsorted(images, chosen.image_rows))


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

    def documents(self, rows: Rows) -> Documents:
        """Some of the images, ascending, with what models wrote and without people's captions."""
        return Documents(
            self.images[rows],
            generated={
                language: captions.among(rows) for language, captions in self.generated.items()
            },
            tags=[self.tags[row] for row in rows.tolist()] if self.tags else (),
        )

    def relevance(self, labels: Sequence[str], rows: Rows) -> NDArray[np.bool_]:
        """(L, N) which of these images people gave each label."""
        columns: dict[str, list[int]] = defaultdict(list)
        for column, row in enumerate(rows.tolist()):
            for label in self.objects[row]:
                columns[label].append(column)
        relevant = np.zeros((len(labels), len(rows)), bool)
        for row, label in enumerate(labels):
            relevant[row, columns[label]] = True
        return relevant


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
    readable, features = load_features(model.image, data, cache, report)
    if mean is not None:
        features = features + (mean - features.mean(axis=0))
    languages = [language for language in readable.languages if language in model.text.languages]
    captioner, tagger = enricher.captioner, enricher.tagger
    return EncodedImages(
        model.image.project(features),
        {language: encode_captions(model.text, readable, language) for language in languages},
        tuple(image.objects for image in readable.images),
        generate_captions(model, captioner, readable, report) if captioner else {},
        tagger.tag(ImageFeatures(features)) if tagger else (),
    )


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images whose objects are the ids of the concepts they show, broader ones included."""

    data: EncodedImages
    sets: Mapping[str, tuple[str, ...]]  # the labelled sets of each concept that a label names


def encode_labelled(
    model: Model,
    data: CaptionDataset,
    cache: FeatureCache | None = None,
    report: Report | None = None,
    enricher: Enricher = NO_HEADS,
) -> LabelledImages:
    """Labelled photographs through the model, as `encode_images` does with captioned ones."""
    sets: dict[str, dict[str, None]] = defaultdict(dict)
    images = []
    for image in data.images:
        for concept in image.concepts:
            sets[concept][image.labelled_set] = None
        shown = {above for concept in image.concepts for above in broader(concept)}
        images.append(replace(image, objects=tuple(sorted(shown))))
    encoded = encode_images(model, data.only(images), cache, report, enricher)
    return LabelledImages(
        encoded, {concept: tuple(of_concept) for concept, of_concept in sorted(sets.items())}
    )


def generate_captions(
    model: Model, captioner: Captioner, data: CaptionDataset, report: Report | None = None
) -> dict[str, EncodedCaptions]:
    """What a captioner writes about images, by language; nothing without feature maps."""
    row_of = {image.id: row for row, image in enumerate(data.images)}
    written: dict[str, list[tuple[int, str]]] = {language: [] for language in captioner.languages}
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
        language: _encoded(model.text, sorted(captions, key=lambda pair: pair[0]), language)
        for language, captions in written.items()
        if language in model.text.languages
    }


def as_indexed(model: Model, data: EncodedImages) -> EncodedImages:
    """The same vectors as the model indexes and searches now: with other penalties and weights."""
    captions = {}
    for language, of_language in data.captions.items():
        encoded = encode_texts(model.text, of_language.texts, language)
        documents = model.text.as_documents(encoded.caption)
        captions[language] = replace(of_language, caption=encoded.caption, documents=documents)
    return replace(data, images=model.image.project(strip_bias(data.images)), captions=captions)


def encode_captions(encoder: TextEncoder, data: CaptionDataset, language: str) -> EncodedCaptions:
    """Every caption in a language."""
    captions = [
        (row, caption.text)
        for row, image in enumerate(data.images)
        for caption in image.captions.get(language, ())
    ]
    return _encoded(encoder, captions, language)


def _encoded(
    encoder: TextEncoder, captions: Sequence[tuple[int, str]], language: str
) -> EncodedCaptions:
    """(row of the image, text) of captions in the order of the images."""
    texts = tuple(text for _, text in captions)
    encoded = encode_texts(encoder, texts, language)
    return EncodedCaptions(
        texts,
        encoded.visual,
        encoded.caption,
        encoder.as_documents(encoded.caption),
        np.array([row for row, _ in captions], np.int64),
    )
