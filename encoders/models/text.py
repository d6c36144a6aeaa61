"""What text encoders of every kind share: caption vectors, hubness penalties, evidence, words.

Where calibrations of models are: this user's own, or the one that a model came with.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from capsearch.encoders.models import registry
from capsearch.encoders.models.calibration import StoredEvidence
from capsearch.encoders.models.hubness import Hubness, HubnessPenalty
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.sentence import SentenceEncoder
from capsearch.encoders.text.concepts.mentions import mentioned
from capsearch.encoders.text.fold import fold, keywords, word_count
from capsearch.encoders.text.languages import detect, simplify
from capsearch.encoders.text.requests import subject
from capsearch.engine.errors import UnknownLanguage, UnknownModel
from capsearch.engine.evidence import LONG, EvidenceModel, NamedConcepts
from capsearch.engine.records import EncodedText, Source, Vectors
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


@dataclass(frozen=True)
class CalibratedTextEncoder(ABC):
    """Encodes sentences of several languages into one space (engine.protocols.TextEncoder).

    A kind of text encoder adds its languages and `visual_vectors`. A caption vector joins the
    shared space and the space of the multilingual sentence encoder.
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
    def unknown_words(self, text: str, language: str) -> tuple[str, ...]:
        """Words of a sentence that are not in its vocabulary."""

    @abstractmethod
    def visual_vectors(
        self, texts: Sequence[str], language: str, sentence: Vectors
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

    def clm_weight(self, language: str) -> float:
        """The weight of CL in CLM that was best on validation."""
        return self.clm_weights[language]

    def cl_floor(self, language: str) -> float:
        """The mean CL score of unrelated captions on validation."""
        return self.cl_floors[language]

    def evidence_model(self, text: str, language: str) -> EvidenceModel | None:
        """What calibration fitted for such a query; None if it never ran."""
        fitted = self.evidence.model(language)
        if fitted is None:
            return None
        words, unfamiliar = word_count(text), bool(self.unknown_words(text, language))
        return fitted.at(words, unfamiliar, words < LONG and self.evidence.is_rare(text, language))

    def background(self, encoded: EncodedText) -> Mapping[Source, float]:
        """What one encoded query scores on unrelated images and captions."""
        return self.evidence.bank.background(encoded)

    def named(self, text: str, language: str) -> NamedConcepts | None:
        """Classifiers of what a query names, where calibration fitted any."""
        return self.evidence.named(text, language)

    def subject(self, text: str, language: str) -> str:
        """What a query asks for, without the words that ask for it."""
        return subject(text, language)

    def spelled(self, text: str, language: str) -> str:
        """The text in the spelling that the encoder was trained with: Simplified Chinese."""
        return simplify(text) if language == "zh" else text

    def concepts(self, text: str, language: str) -> tuple[frozenset[str], ...]:
        """What a query names, by the concept table."""
        return mentioned(text, language)

    def words(self, text: str) -> tuple[str, ...]:
        """Folded tokens of a text, in order."""
        return fold(text)

    def keywords(self, text: str) -> tuple[str, ...]:
        """The folded tokens that a query looks for, each once."""
        return keywords(text)

    def encode(self, texts: Sequence[str], language: str) -> EncodedText:
        """Sentences of one language as queries; a sentence without known words is a zero row."""
        if language not in self.languages:
            raise UnknownLanguage(
                f"model {self.name} does not read '{language}'; it reads "
                f"{', '.join(self.languages)}"
            )
        texts = [self.spelled(text, language) for text in texts]
        sentence = self.sentences.encode(texts)  # (N, S)
        visual, known = self.visual_vectors(texts, language, sentence)
        mask = np.array(known, np.float32)[:, None]
        caption = caption_vectors(visual, sentence, self.sentence_weight)
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
    return any(model.text.evidence_model("", one) is not None for one in model.text.languages)


def stored_evidence(model: Model) -> StoredEvidence:
    """What calibration made for a model; UnknownModel if it never ran."""
    if not isinstance(model.text, CalibratedTextEncoder) or not is_calibrated(model):
        command = f"capsearch calibrate --model {model.name} --data DIR"
        raise UnknownModel(f"{model.name} is not calibrated: run `{command}`")
    return model.text.evidence
