"""What text encoders of every kind share: caption vectors, hubness penalties, evidence, words.

Where calibrations of models are: this user's own, or the one that a model came with.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from capsearch.encoders.models import registry
from capsearch.encoders.models.calibration import StoredEvidence
from capsearch.encoders.models.hubness import Hubness, HubnessPenalty
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.sentence import SentenceEncoder
from capsearch.encoders.text.concepts.mentions import mentioned
from capsearch.encoders.text.languages import detect
from capsearch.encoders.text.requests import subject
from capsearch.encoders.text.tokenizers import Word, fold, keywords, word_count
from capsearch.engine.errors import UnknownLanguage, UnknownModel
from capsearch.engine.evidence import LONG, ConvexCombination, EvidenceModel
from capsearch.engine.query import Understood, phrases
from capsearch.engine.records import EncodedText, Vectors
from capsearch.engine.vectors import as_document, as_query, strip_bias

DEFAULT_CLM_WEIGHT = 0.5  # where no validation image has captions in two languages


@dataclass(frozen=True, slots=True)
class Calibration:
    """The numbers of model.json that search uses, and the CM MRR they give."""

    sentence_weight: float
    clm_weights: Mapping[str, float]
    cl_floors: Mapping[str, float]
    hubness: Mapping[str, HubnessPenalty]  # of "image" and "caption"
    served_mrr: Mapping[str, float]  # with hubness penalties, which validation_mrr lacks


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text of one language, read once."""

    text: str  # in the spelling that the encoder was trained with
    tokens: tuple[str, ...] = ()  # of that text, where the encoder has a vocabulary
    unknown: tuple[str, ...] = ()  # tokens of the text as it was written, outside the vocabulary
    words: Sequence[Word] | None = None  # of Japanese as it was written, where they were needed


@dataclass(frozen=True)
class CalibratedTextEncoder(ABC):
    """Encodes sentences of several languages into one space (engine.protocols.TextEncoder).

    A kind of text encoder adds its languages, `read` and `visual_vectors`. A caption vector joins
    the shared space and the space of the multilingual sentence encoder.
    """

    name: str
    digest: str
    width: int  # of the shared space
    sentences: SentenceEncoder
    clm_weights: Mapping[str, float]
    cl_floors: Mapping[str, float]
    sentence_weight: float  # of the sentence space in CL; the rest is the shared space's
    hubness: Hubness  # of captions
    evidence: StoredEvidence

    @property
    @abstractmethod
    def languages(self) -> tuple[str, ...]:
        """The languages it encodes."""

    @abstractmethod
    def read(self, text: str, language: str) -> Sentence:
        """A text of one of its languages as `visual_vectors` takes it."""

    @abstractmethod
    def visual_vectors(
        self, sentences: Sequence[Sentence], language: str, vectors: Vectors
    ) -> tuple[Vectors, tuple[bool, ...]]:
        """(N, D) unit vectors of sentences with sentence vectors (N, S); which it knows at all."""

    @property
    def dimension(self) -> int:
        """D, the width of an image vector: the shared space and the hubness penalty."""
        return self.width + 1

    @property
    def caption_dimension(self) -> int:
        """C, the width of a caption vector: shared space, sentence space, hubness penalty."""
        return self.width + self.sentences.dimension + 1

    def detect(self, text: str) -> str:
        """The language by script; the model's first one if it does not encode that."""
        language = detect(text)
        return language if language in self.languages else self.languages[0]

    def convex(self, language: str) -> ConvexCombination:
        """The weight of CL that was best on validation, and the mean CL of unrelated captions."""
        return ConvexCombination(self.clm_weights[language], self.cl_floors[language])

    def understand(self, text: str, language: str | None = None) -> Understood:
        """The text of a query: normalised, cut, encoded and looked up once."""
        language = language or self.detect(text)
        if language not in self.languages:
            known = ", ".join(self.languages)
            raise UnknownLanguage(f"no model reads '{language}'; choose one of {known}")
        asked = subject(text, language)
        sentence = self.read(asked, language)
        things = mentioned(asked, language, sentence.words)
        vectors = self.encode_read([sentence], language)
        folded = (fold(phrase) for phrase in phrases(text))
        understood = Understood(
            language=language,
            vectors=vectors,
            keywords=keywords(asked),
            phrases=tuple(words for words in folded if words),  # stop words alone fold to nothing
            concepts=things,
            convex=self.convex(language),
        )
        model = self._model(asked, language, sentence, things)
        if model is None:
            return understood
        named = self.evidence.named(things) if model.concept_weight else None
        background = self.evidence.bank.background(vectors)
        return replace(understood, model=model, background=background, named=named)

    def unknown_words(self, text: str, language: str) -> tuple[str, ...]:
        """Words of a sentence that are not in its vocabulary."""
        return self.read(text, language).unknown

    def evidence_model(self, text: str, language: str) -> EvidenceModel | None:
        """What calibration fitted for such a query; None if it never ran."""
        sentence = self.read(text, language)
        return self._model(text, language, sentence, mentioned(text, language, sentence.words))

    def _model(
        self, text: str, language: str, sentence: Sentence, things: Sequence[frozenset[str]]
    ) -> EvidenceModel | None:
        fitted = self.evidence.model(language)
        if fitted is None:
            return None
        words = word_count(text)
        rare = words < LONG and self.evidence.is_rare(things)
        return fitted.at(words, bool(sentence.unknown), rare)

    def words(self, text: str) -> tuple[str, ...]:
        """Folded tokens of a text, in order."""
        return fold(text)

    def encode(self, texts: Sequence[str], language: str) -> EncodedText:
        """Sentences of one language as queries; a sentence without known words is a zero row."""
        if language not in self.languages:
            raise UnknownLanguage(
                f"model {self.name} does not read '{language}'; it reads "
                f"{', '.join(self.languages)}"
            )
        return self.encode_read([self.read(text, language) for text in texts], language)

    def encode_read(self, sentences: Sequence[Sentence], language: str) -> EncodedText:
        """`encode` of sentences that were read already."""
        vectors = self.sentences.encode([sentence.text for sentence in sentences])  # (N, S)
        visual, known = self.visual_vectors(sentences, language, vectors)
        mask = np.array(known, np.float32)[:, None]
        caption = caption_vectors(visual, vectors, self.sentence_weight)
        return EncodedText(as_query(visual * mask), as_query(caption * mask), known)

    def as_documents(self, captions: Vectors) -> Vectors:
        """Caption vectors with their hubness penalties, for an index; zero rows stay zero."""
        vectors = strip_bias(captions)
        return as_document(vectors, self.hubness.penalties(vectors) * vectors.any(axis=1))


def caption_vectors(visual: Vectors, sentence: Vectors, sentence_weight: float) -> Vectors:
    """Vectors whose inner product is the weighted sum of the cosines in both spaces."""
    return np.concatenate(
        [np.sqrt(1.0 - sentence_weight) * visual, np.sqrt(sentence_weight) * sentence],
        axis=1,
        dtype=np.float32,
    )


def calibration_folder(folder: Path, card: Mapping[str, Any]) -> Path:
    """Where a model's evidence calibration lies: one made by this user first, or the model's."""
    own = own_calibration(str(card["name"]), registry.stored_digest(folder, card))
    return own if own.is_dir() else folder


def own_calibration(name: str, digest: str) -> Path:
    """Where this user's calibration of a model is."""
    file_name = re.sub(r"[^\w.+-]+", "-", name)  # of open_clip:ORG/NAME too
    return registry.user_models_dir() / "calibrations" / f"{file_name}@{digest}"


def is_calibrated(model: Model) -> bool:
    """Whether its scores are probabilities for queries of some language."""
    return isinstance(model.text, CalibratedTextEncoder) and any(
        model.text.evidence.model(language) for language in model.text.languages
    )


def stored_evidence(model: Model) -> StoredEvidence:
    """What calibration made for a model; UnknownModel if it never ran."""
    if not isinstance(model.text, CalibratedTextEncoder) or not is_calibrated(model):
        command = f"capsearch calibrate --model {model.name} --data DIR"
        raise UnknownModel(f"{model.name} is not calibrated: run `{command}`")
    return model.text.evidence
