"""What models write about a large synthetic collection: captions and tags, as `enrich` leaves them.

Half of the tags are of concepts that the queries name, so that each of these is on a sixth of the
images, as trees and people are on photos; the others are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from capsearch.benchmarks import synthetic
from capsearch.encoders import concepts
from capsearch.encoders.models import Model
from capsearch.engine.records import GENERATED
from capsearch.indexer.embedded.catalog_writer import CatalogWriter

CAPTIONS, TAGS = 3, 8  # of each image
SOURCE = f"{GENERATED}bench"
_COMMON = 24  # concepts that many images have


class Descriptions:
    """Captions and tags of images by their numbers, the same ones on every machine."""

    def __init__(self, model: Model) -> None:
        self.tokens = cache(lambda text: " ".join(model.text.words(text)))
        languages = [one for one in synthetic.WORDS if one in model.text.languages]
        chosen = (languages * CAPTIONS)[:CAPTIONS]
        self._texts = [(language, synthetic.sentences(language)) for language in chosen]
        named = Counter(
            max(sorted(ids), key=lambda one: len(concepts.narrower(one)))
            for _, texts in self._texts
            for text in texts
            for ids in model.text.concepts(text)
        )
        self._common = [one for one, _ in named.most_common(_COMMON)]
        self._all = sorted(concepts.all_concepts())

    def captions(self, at: int) -> Iterator[tuple[str, str]]:
        """(language, text)."""
        for row, (language, texts) in enumerate(self._texts):
            yield language, texts[(at * (row + 11) + row * 31) % len(texts)]

    def tags(self, at: int) -> dict[str, float]:
        """Concepts and their probabilities."""
        chosen = np.random.default_rng([at, TAGS])
        common = chosen.choice(len(self._common), TAGS // 2, replace=False)
        others = chosen.integers(0, len(self._all), TAGS - TAGS // 2)
        ids = [*(self._common[one] for one in common), *(self._all[one] for one in others)]
        return dict(zip(ids, chosen.beta(2, 2, TAGS).round(3).tolist(), strict=True))

    def words(self, at: int) -> str:
        """What the index of generated words holds."""
        texts = [text for _, text in self.captions(at)] + [_label(one) for one in self.tags(at)]
        return " ¶ ".join(self.tokens(text) for text in texts)


def describe(writer: CatalogWriter, model: Model, ids: Sequence[str], first: int) -> None:
    """Adds generated captions, whose vectors are in the rows from `first`, and generated tags."""
    connection, written = writer.catalog.connection, Descriptions(model)
    connection.executemany(
        "INSERT INTO captions (image_id, text, language, source, origin, encoded, slot, confidence)"
        f" VALUES (?, ?, ?, '{SOURCE}', '', 1, ?, 0.5)",
        (
            (ids[at], text, language, first + CAPTIONS * at + row)
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


def _label(concept_id: str) -> str:
    return concepts.by_id(concept_id).name("en")
