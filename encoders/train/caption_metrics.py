"""How good captions are: BLEU, METEOR, ROUGE-L and CIDEr-D by pycocoevalcap, on our words.

Its own tokenizer knows English only, so all texts are split by `split_words` first. METEOR runs in
Java, with English synonyms; for other languages it matches words as they are.

`CiderReward` is CIDEr-D of one image's captions at a time. pycocoevalcap counts document
frequencies in the captions that it is given, a batch here; these are of all training references,
and words are positions in a vocabulary. A test compares both.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.tag_labels import jieba_tokenizer
from capsearch.encoders.text.languages import normalise, simplify
from capsearch.encoders.text.tokenizers import mecab
from capsearch.engine.errors import MissingExtra

References = Mapping[str, Mapping[int, tuple[str, ...]]]  # language -> image row -> captions
_COMMAS = {"zh": "，、", "ja": "、"}  # kept for writing, since long sentences need them
_COMMA = re.compile("[,，、，]")
METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D")


def references_of(data: CaptionDataset, languages: Sequence[str]) -> References:
    """What people wrote of each image, as words separated by spaces."""
    references: dict[str, dict[int, tuple[str, ...]]] = {}
    for language in languages:
        references[language] = {}
        for row, image in enumerate(data.images):
            captions = image.captions.get(language, ())
            texts = tuple(filter(None, (in_words(each.text, language) for each in captions)))
            if texts:
                references[language][row] = texts
    return references


def split_words(text: str, language: str, commas: bool = False) -> tuple[str, ...]:
    """A caption's words as written, in lower case, without punctuation.

    `commas` keeps the commas of Chinese and Japanese. MissingExtra without jieba.
    """
    plain = normalise(simplify(text) if language == "zh" else text).lower()
    if language == "en":
        return tuple(re.findall(r"[a-z0-9]+(?:['’-][a-z0-9]+)*", plain))
    kept = _COMMAS.get(language, "") if commas else ""
    plain = _COMMA.sub(kept[:1] or " ", plain)
    cut = jieba_tokenizer().cut(plain, HMM=False) if language == "zh" else map(str, mecab()(plain))
    return tuple(word for word in cut if re.search(r"\w", word) or (word in kept and word))


def in_words(text: str, language: str) -> str:
    """A caption as words separated by spaces, without punctuation."""
    return " ".join(split_words(text, language))


def cider(
    captions: Mapping[int, str], references: Mapping[int, tuple[str, ...]], language: str
) -> float:
    """CIDEr-D of captions by image row; MissingExtra without pycocoevalcap."""
    try:
        from pycocoevalcap.cider.cider import Cider
    except ImportError:
        raise MissingExtra("measuring captions", "bench") from None
    score, _ = Cider().compute_score(*_as_lists(captions, references, language))
    return float(score)


def all_scores(
    captions: Mapping[int, str], references: Mapping[int, tuple[str, ...]], language: str
) -> Mapping[str, float]:
    """METRICS of captions by image row, METEOR only where Java is installed."""
    try:
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.rouge.rouge import Rouge
    except ImportError:
        raise MissingExtra("measuring captions", "bench") from None
    wanted, written = _as_lists(captions, references, language)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the lengths
        bleu, _ = Bleu(4).compute_score(wanted, written)
    rouge, _ = Rouge().compute_score(wanted, written)
    scores = {f"BLEU-{order}": float(value) for order, value in enumerate(bleu, start=1)}
    scores |= {"ROUGE-L": float(rouge), "CIDEr-D": cider(captions, references, language)}
    if has_java():
        scores["METEOR"] = _meteor(wanted, written)
    return {name: scores[name] for name in METRICS if name in scores}


def has_java() -> bool:
    """Whether METEOR can be computed."""
    return shutil.which("java") is not None


def _meteor(wanted: Mapping[int, list[str]], written: Mapping[int, list[str]]) -> float:
    from pycocoevalcap.meteor.meteor import Meteor

    scorer = Meteor()
    score, _ = scorer.compute_score(wanted, written)
    process = scorer.meteor_p
    process.stdin.close()
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        stream.close()
    return float(score)


def _as_lists(
    captions: Mapping[int, str], references: Mapping[int, tuple[str, ...]], language: str
) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """References and captions of the same images, as pycocoevalcap takes them."""
    written = {row: [in_words(captions[row], language)] for row in references if row in captions}
    return {row: list(references[row]) for row in written}, written


Sentence = Sequence[int] | NDArray[np.int64]
_NGrams = Mapping[tuple[int, ...], float]
_ORDERS = (1, 2, 3, 4)
_SIGMA = 6.0  # of the length penalty


@dataclass(frozen=True, slots=True)
class _Weighted:
    """The tf-idf of a sentence's n-grams by order, their norms, and its bigrams."""

    weights: tuple[_NGrams, ...]
    norms: tuple[float, ...]
    bigrams: int

    def similarity(self, reference: _Weighted) -> float:
        """CIDEr-D of this sentence against one reference, from 0 to 10."""
        penalty = math.exp(-((self.bigrams - reference.bigrams) ** 2) / (2 * _SIGMA**2))
        total = 0.0
        for mine, theirs, *norms in zip(
            self.weights, reference.weights, self.norms, reference.norms, strict=True
        ):
            common = sum(
                min(weight, theirs[ngram]) * theirs[ngram]
                for ngram, weight in mine.items()
                if ngram in theirs
            )
            total += common / (norms[0] * norms[1]) if norms[0] and norms[1] else 0.0
        return 10.0 * penalty * total / len(_ORDERS)


class CiderReward:
    """CIDEr-D with the document frequencies of many images' references."""

    def __init__(self, references: Sequence[Sequence[Sentence]]) -> None:
        """`references[i]`: the sentences of image i, their ends included."""
        self._references = references
        counts: Counter[tuple[int, ...]] = Counter()
        for sentences in references:
            counts.update({ngram for sentence in sentences for ngram in _ngrams(sentence)})
        images = sum(bool(sentences) for sentences in references)
        self._idf = {ngram: math.log(images / count) for ngram, count in counts.items()}
        self._unseen = math.log(max(images, 1))

    def scores(self, image: int, sentences: Sequence[Sentence]) -> NDArray[np.float64]:
        """(K,) the mean over the image's references for each sentence."""
        references = [self._weighted(sentence) for sentence in self._references[image]]
        written = [self._weighted(sentence) for sentence in sentences]
        return np.array(
            [np.mean([caption.similarity(each) for each in references]) for caption in written]
        )

    def _weighted(self, sentence: Sentence) -> _Weighted:
        weights: tuple[dict[tuple[int, ...], float], ...] = tuple({} for _ in _ORDERS)
        for ngram, count in _ngrams(sentence).items():
            weights[len(ngram) - 1][ngram] = count * self._idf.get(ngram, self._unseen)
        norms = tuple(math.sqrt(sum(value**2 for value in part.values())) for part in weights)
        return _Weighted(weights, norms, max(len(sentence) - 1, 0))


def _ngrams(sentence: Sentence) -> Counter[tuple[int, ...]]:
    words = tuple(int(word) for word in sentence)
    return Counter(
        words[at : at + order] for order in _ORDERS for at in range(len(words) - order + 1)
    )
