"""What models write about a large synthetic collection: captions and tags, as `enrich` leaves them.

An image has the tags whose names it scores best on, of some that the queries name and some others,
as a tagger that looks at images would choose them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from capsearch.benchmarks import synthetic
from capsearch.benchmarks.scale_vectors import CAPTIONS_PER_IMAGE
from capsearch.encoders import concepts
from capsearch.encoders.models import Model
from capsearch.engine.records import GENERATED
from capsearch.indexer.embedded.arrays import Rows, sequential
from capsearch.indexer.embedded.catalog_writer import CatalogWriter

TAGS = 8  # of each image
SOURCE = f"{GENERATED}bench"
_NAMED, _OTHERS = 40, 160  # concepts: of the queries, and others
_LIKELY = 2.5  # standard deviations above the mean score: as likely as not


class Descriptions:
    """Captions and tags of images by their numbers, the same ones on every machine."""

    def __init__(self, model: Model, images: Rows) -> None:
        self.tokens = cache(lambda text: " ".join(model.text.words(text)))
        languages = [one for one in synthetic.WORDS if one in model.text.languages]
        chosen = [languages[at % len(languages)] for at in range(CAPTIONS_PER_IMAGE)]
        self._texts = [(language, synthetic.sentences(language)) for language in chosen]
        self._concepts = _concepts(model, self._texts)
        self._chosen, self._shares = _tags(model, self._concepts, images)

    def captions(self, at: int) -> Iterator[tuple[str, str]]:
        """(language, text)."""
        for row, (language, texts) in enumerate(self._texts):
            yield language, texts[(at * (row + 11) + row * 31) % len(texts)]

    def tags(self, at: int) -> dict[str, float]:
        """Concepts and their probabilities."""
        chosen = [self._concepts[one] for one in self._chosen[at].tolist()]
        return dict(zip(chosen, self._shares[at].round(3).tolist(), strict=True))

    def words(self, at: int) -> str:
        """What the index of generated words holds."""
        texts = [text for _, text in self.captions(at)] + [_label(one) for one in self.tags(at)]
        return " ¶ ".join(self.tokens(text) for text in texts)


def describe(writer: CatalogWriter, model: Model, ids: Sequence[str]) -> None:
    """Adds generated captions, one for each row of the vector file, and generated tags."""
    connection = writer.catalog.connection
    written = Descriptions(model, writer.catalog.array("vectors").view())
    connection.executemany(
        "INSERT INTO captions (image_id, text, language, source, origin, encoded, slot, confidence)"
        f" VALUES (?, ?, ?, '{SOURCE}', '', 1, ?, 0.5)",
        (
            (ids[at], text, language, CAPTIONS_PER_IMAGE * at + row)
            for at in range(len(ids))
            for row, (language, text) in enumerate(written.captions(at))
        ),
    )
    connection.executemany(
        "INSERT INTO tags (image_id, label, language, confidence, source, concept) "
        f"VALUES (?, ?, 'en', ?, '{SOURCE}', ?) ON CONFLICT DO NOTHING",
        (
            (ids[at], _label(one), share, one)
            for at in sorted(range(len(ids)), key=ids.__getitem__)
            for one, share in written.tags(at).items()
        ),
    )
    connection.executemany(
        "INSERT INTO generated_words (rowid, tokens) VALUES (?, ?)",
        ((at + 1, written.words(at)) for at in range(len(ids))),
    )
    connection.executemany(
        f"INSERT INTO enriched VALUES (?, '{SOURCE}', '{SOURCE}')", ((one,) for one in ids)
    )


def _concepts(model: Model, texts: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The broadest that most sentences name, and others."""
    named = Counter(
        max(sorted(ids), key=lambda one: len(concepts.narrower(one)))
        for language, some in texts
        for text in some
        for ids in model.text.concepts(text, language)
    )
    chosen = [one for one, _ in named.most_common(_NAMED)]
    others = sorted(concepts.all_concepts().keys() - named.keys())
    return chosen + others[:: len(others) // _OTHERS][:_OTHERS]


def _tags(
    model: Model, chosen: Sequence[str], images: Rows
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(N, TAGS) concepts of each image by their place in `chosen`, and their probabilities."""
    names = model.text.encode([_label(one) for one in chosen], "en").visual
    scores = np.concatenate([block @ names.T for block in sequential(images)])
    scores = (scores - scores.mean(axis=0)) / scores.std(axis=0)
    best = np.argpartition(-scores, TAGS, axis=1)[:, :TAGS]
    return best, 1 / (1 + np.exp(_LIKELY - np.take_along_axis(scores, best, axis=1)))


def _label(concept_id: str) -> str:
    return concepts.by_id(concept_id).name("en")
