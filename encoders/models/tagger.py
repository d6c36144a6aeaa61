"""Taggers: what an image shows, from its pooled feature (COCO-CN section IV-B), in numpy.

A tag is a concept of the concept table, which has names in three languages, or a word of one
language that no concept has. Concepts link the languages: a tag comes once, can be shown in any of
them, and is found by its synonyms and broader terms. Words without a concept are kept, since
captions say more than the table knows.

A network has one output for each language, with a column for every tag that the captions of this
language teach. In a cascade, the scores of the most frequent English tags are an input of the
others. A concept that several outputs predict has the mean of their log-odds. Probabilities are
calibrated for each tag (Platt scaling).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import write_text
from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.model_folder import Arrays
from capsearch.engine.records import GENERATED, ImageFeatures, Tag, Vectors

FIRST_LANGUAGE = "en"  # of a cascade
SHARED = "shared"  # the hidden layer of a multi-task network
MAX_TAGS = 20  # of an image
TAGS_FILE, WEIGHTS_FILE = "tags.json", "tagger.safetensors"


@dataclass(frozen=True, slots=True)
class TagName:
    """What a column predicts: a concept, by its English name, or a word of one language."""

    label: str
    language: str
    concept: str = ""


@dataclass(frozen=True)
class TagVocabulary:
    """All tags of a model, and by language those that its output predicts, in column order."""

    tags: tuple[TagName, ...]
    columns: Mapping[str, NDArray[np.int64]]

    def save(self, folder: Path) -> None:
        """Write the table of a model folder."""
        columns = {language: rows.tolist() for language, rows in self.columns.items()}
        stored = {"tags": [asdict(tag) for tag in self.tags], "columns": columns}
        write_text(folder / TAGS_FILE, json.dumps(stored, ensure_ascii=False, indent=0) + "\n")

    @staticmethod
    def load(folder: Path) -> TagVocabulary:
        """The table that `save` wrote."""
        stored = json.loads((folder / TAGS_FILE).read_text("utf-8"))
        return TagVocabulary(
            tuple(TagName(**tag) for tag in stored["tags"]),
            {name: np.array(columns, np.int64) for name, columns in stored["columns"].items()},
        )

    def merge(self, logits: Mapping[str, Vectors]) -> Vectors:
        """(N, T): the mean of the (N, K) log-odds of the outputs that predict a tag."""
        count = len(next(iter(logits.values())))
        total = np.zeros((count, len(self.tags)), np.float32)
        outputs = np.zeros(len(self.tags), np.float32)
        for language, log_odds in logits.items():
            total[:, self.columns[language]] += log_odds
            outputs[self.columns[language]] += 1
        return np.asarray(total / np.maximum(outputs, 1), np.float32)


@dataclass(frozen=True)
class BuiltInTagger:
    """A trained tagger (engine Tagger)."""

    name: str
    folder: Path
    semantic: int  # English scores that are inputs of the other outputs; 0: no cascade
    min_confidence: float  # of a tag that is returned

    def tag(self, features: ImageFeatures) -> tuple[tuple[Tag, ...], ...]:
        """The tags of each image, best first; in English where they are concepts."""
        return tuple(tuple(self._tags(row)) for row in self.probabilities(features.pooled))

    def concept_probabilities(self, features: ImageFeatures) -> tuple[tuple[str, ...], Vectors]:
        """The ids of all concepts that it knows, and (N, K) their probabilities."""
        chosen = [at for at, tag in enumerate(self.vocabulary.tags) if tag.concept]
        ids = tuple(self.vocabulary.tags[at].concept for at in chosen)
        return ids, self.probabilities(features.pooled)[:, chosen]

    def probabilities(self, pooled: Vectors) -> Vectors:
        """(N, T) calibrated probabilities of `vocabulary.tags`."""
        log_odds = self.vocabulary.merge(self.logits(pooled))
        calibrated = log_odds * self._arrays["slope"] + self._arrays["intercept"]
        return _sigmoid(calibrated)

    def logits(self, pooled: Vectors) -> Mapping[str, Vectors]:
        """(N, K) log-odds by language, not calibrated, as the papers rank by them."""
        logits: dict[str, Vectors] = {}
        languages = self.vocabulary.columns
        for language in sorted(languages, key=lambda language: language != FIRST_LANGUAGE):
            inputs = pooled.astype(np.float32)
            if self.semantic and language != FIRST_LANGUAGE:
                scores = _sigmoid(logits[FIRST_LANGUAGE][:, : self.semantic])
                inputs = np.concatenate([inputs, scores], axis=1)
            logits[language] = self._output(inputs, language)
        return {language: logits[language] for language in languages}

    def _output(self, inputs: Vectors, language: str) -> Vectors:
        w = self._arrays
        part = SHARED if f"{SHARED}.hidden_W" in w else language
        hidden = np.maximum(inputs @ w[f"{part}.hidden_W"].T + w[f"{part}.hidden_b"], 0.0)
        return np.asarray(hidden @ w[f"{language}.out_W"].T + w[f"{language}.out_b"], np.float32)

    def _tags(self, probabilities: Vectors) -> Iterator[Tag]:
        best = np.argsort(-probabilities, kind="stable")[:MAX_TAGS]
        for at in best[probabilities[best] >= self.min_confidence]:
            tag, confidence = self.vocabulary.tags[at], round(float(probabilities[at]), 4)
            yield Tag(tag.label, tag.language, confidence, GENERATED + self.name, tag.concept)

    @cached_property
    def vocabulary(self) -> TagVocabulary:
        """What it can say."""
        return TagVocabulary.load(self.folder)

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self.folder / WEIGHTS_FILE)


def load(folder: Path) -> BuiltInTagger:
    """Kind `tagger`."""
    card: Mapping[str, Any] = model_folder.read_card(folder)
    return BuiltInTagger(
        name=f"{card['name']}@{registry.stored_digest(folder, card)}",
        folder=folder,
        semantic=int(card["semantic"]),
        min_confidence=float(card["min_confidence"]),
    )


def _sigmoid(log_odds: Vectors) -> Vectors:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(log_odds, -40.0, 40.0))), np.float32)
