"""How good captions are: BLEU, METEOR, ROUGE-L and CIDEr-D by pycocoevalcap, on our words.

Its own tokenizer knows English only, so all texts are split by `split_words` first. METEOR runs in
Java, with English synonyms; for other languages it matches words as they are.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.text.languages import normalise, simplify
from capsearch.encoders.text.tokenizers import mecab
from capsearch.engine.errors import MissingExtra

References = Mapping[str, Mapping[int, tuple[str, ...]]]  # language -> image row -> captions
_COMMAS = {"zh": "，、", "ja": "、"}  # kept for writing, since long sentences need them
_COMMA = re.compile("[,，、，]")
METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D")


def references_of(data: CaptionDataset, languages: Sequence[str]) -> References:
    """What people wrote of each image, as words separated by spaces."""
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    for language in languages:
        found[language] = {}
        for row, image in enumerate(data.images):
            captions = image.captions.get(language, ())
            texts = tuple(filter(None, (in_words(one.text, language) for one in captions)))
            if texts:
                found[language][row] = texts
    return found


def split_words(text: str, language: str, commas: bool = False) -> tuple[str, ...]:
    """A caption's words as written, in lower case, without punctuation.

    `commas` keeps the commas of Chinese and Japanese. MissingExtra without jieba.
    """
    plain = normalise(simplify(text) if language == "zh" else text).lower()
    if language == "en":
        return tuple(re.findall(r"[a-z0-9]+(?:['’-][a-z0-9]+)*", plain))
    kept = _COMMAS.get(language, "") if commas else ""
    plain = _COMMA.sub(kept[:1] or " ", plain)
    cut = _jieba().cut(plain, HMM=False) if language == "zh" else map(str, mecab()(plain))
    return tuple(word for word in cut if re.search(r"\w", word) or (word in kept and word))


@cache
def _jieba() -> Any:
    try:
        import jieba
    except ImportError:
        raise MissingExtra("splitting Chinese captions into words", "train") from None
    jieba.setLogLevel(60)
    return jieba.Tokenizer()


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
    found = {f"BLEU-{order}": float(value) for order, value in enumerate(bleu, start=1)}
    found |= {"ROUGE-L": float(rouge), "CIDEr-D": cider(captions, references, language)}
    if has_java():
        found["METEOR"] = _meteor(wanted, written)
    return {name: found[name] for name in METRICS if name in found}


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
