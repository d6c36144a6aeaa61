"""Which tags images have, from what people said of them, and which tags that leaves unknown.

COCO-CN section III: tags are human tags and the nouns, verbs and adjectives of captions. Names of
concepts go first, longer ones before shorter ones ("hot dog" is no dog). Parts of speech: jieba for
Chinese, MeCab for Japanese; for English, where no tagger is installed, all but function words.

A caption names some of what an image shows; as in COCO-CN what it does not name counts as absent.
Three things are not known, rather than absent, and a loss must not count them:

    the tags of a language in which an image has no caption, except what objects or labels say
    a broader concept of one that is named: a cat is an animal though nobody says so
    what a labelled photograph shows beside its label, except the other labels of its set
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from Stemmer import Stemmer

from capsearch.encoders.data.layouts import LEFT_OUT_SOURCES, CaptionedImage
from capsearch.encoders.models.tagger import TagName, TagVocabulary
from capsearch.encoders.text import concepts
from capsearch.encoders.text.concepts.mentions import (
    english_words,
    longest_name,
    means_nothing,
)
from capsearch.encoders.text.languages import normalise, simplify
from capsearch.encoders.text.tokenizers import Word, japanese_words
from capsearch.engine.errors import MissingExtra, TrainingProblem, UnknownLanguage


@dataclass(frozen=True, slots=True)
class Named:
    """What a sentence names: ids of concepts, and other content words with their spelling."""

    concepts: tuple[str, ...]
    words: Mapping[str, str]  # dictionary form -> spelling


def named_in(text: str, language: str) -> Named:
    """What a sentence of a language names; UnknownLanguage for one without a word splitter."""
    if language not in _SPLITTERS:
        raise UnknownLanguage(f"no words in '{language}'; there is {', '.join(_SPLITTERS)}")
    words = _SPLITTERS[language](text)
    named: dict[str, None] = {}
    others: dict[str, str] = {}
    at = 0
    while at < len(words):
        ids, length = longest_name(words, at, language)
        if ids:
            named[ids[0]] = None
        elif _may_be_tag(words[at], language):
            key, spelling = _KEYS[language](words[at])
            others[key] = spelling
        at += length
    return Named(tuple(named), others)


def _may_be_tag(word: Word, language: str) -> bool:
    return _CONTENT[language](word) and not means_nothing(word.base, language)


def _is_english_content(word: Word) -> bool:
    return not word.surface.isdigit()


def _is_chinese_content(word: Word) -> bool:
    """Nouns; of verbs and adjectives only those of two characters or more, as in COCO-CN."""
    if word.kind[:1] == "n":
        return True
    return word.kind[:1] in ("a", "v") and len(_without_particle(word)) > 1


def _is_japanese_content(word: Word) -> bool:
    kind, _, detail = word.kind.partition("-")
    return kind in _JAPANESE_CONTENT and detail not in _JAPANESE_AUXILIARY


def _chinese(text: str) -> list[Word]:
    cut = _jieba().lcut(normalise(simplify(text)).lower(), HMM=False)
    return [Word(word, kind=flag) for word, flag in cut if re.search(r"\w", word)]


def _without_particle(word: Word) -> str:
    """坐在 -> 坐."""
    verb = word.kind[:1] in ("a", "v") and len(word.surface) > 1
    return word.surface[:-1] if verb and word.surface[-1] in "在着了" else word.surface


def _english_key(word: Word) -> tuple[str, str]:
    return Stemmer("english", 0).stemWord(word.surface), word.surface


def _chinese_key(word: Word) -> tuple[str, str]:
    form = _without_particle(word)
    return form, form


def _japanese_key(word: Word) -> tuple[str, str]:
    return word.base, word.base


@cache
def jieba_tokenizer() -> Any:
    """jieba with its own dictionary, which cuts training captions; MissingExtra without it."""
    try:
        import jieba
    except ImportError:
        raise MissingExtra("splitting Chinese captions into words", "train") from None
    jieba.setLogLevel(60)
    return jieba.Tokenizer()


@cache
def _jieba() -> Any:
    tokenizer = jieba_tokenizer()
    from jieba.posseg import POSTokenizer

    return POSTokenizer(tokenizer)


_SPLITTERS: Mapping[str, Callable[[str], Sequence[Word]]] = {
    "en": english_words,
    "zh": _chinese,
    "ja": japanese_words,
}
_CONTENT: Mapping[str, Callable[[Word], bool]] = {
    "en": _is_english_content,
    "zh": _is_chinese_content,
    "ja": _is_japanese_content,
}
# The key that words of one meaning share, and how the word is spelled.
_KEYS: Mapping[str, Callable[[Word], tuple[str, str]]] = {
    "en": _english_key,
    "zh": _chinese_key,
    "ja": _japanese_key,
}
_JAPANESE_CONTENT = frozenset({"名詞", "動詞", "形容詞", "形状詞"})
_JAPANESE_AUXILIARY = frozenset({"非自立可能", "数詞", "助動詞語幹"})

MIN_COUNT = 20  # COCO-CN: images that a tag must have


@dataclass(frozen=True, slots=True)
class Mentions:
    """What is said of one image: by language in captions and tags; by objects and labels.

    Keys are concept ids, or LANGUAGE:FORM for words without a concept.
    """

    said: Mapping[str, frozenset[str]]
    objects: frozenset[str]
    labels: frozenset[str] = frozenset()
    label_set: str = ""


@dataclass
class _Spellings:
    """How often a word without a concept is spelled in which way."""

    counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def commonest(self, key: str) -> str:
        return self.counts[key].most_common(1)[0][0]


@dataclass(frozen=True)
class Annotations:
    """The mentions of a data set's images, in its order."""

    mentions: tuple[Mentions, ...]
    spellings: _Spellings = field(repr=False, default_factory=_Spellings)


def annotate(images: Iterable[CaptionedImage], languages: Sequence[str]) -> Annotations:
    """What captions, human tags, objects and labels say of each image."""
    spellings = _Spellings()
    mentions = tuple(_mentions(image, languages, spellings) for image in images)
    return Annotations(mentions, spellings)


def build_vocabulary(
    annotations: Annotations, languages: Sequence[str], min_count: int = MIN_COUNT
) -> TagVocabulary:
    """Tags that `min_count` images have, most frequent first in each language's columns.

    What objects and labels name is a column of every language. TrainingProblem where a language
    has no tag.
    """
    everywhere = _frequent(
        (image.objects | image.labels for image in annotations.mentions), min_count
    )
    rows: dict[str, int] = {}
    columns: dict[str, NDArray[np.int64]] = {}
    for language in languages:
        counts = _frequent(
            (image.said.get(language, ()) for image in annotations.mentions), min_count
        )
        if not counts:
            raise TrainingProblem(
                f"no {language} word is said of {min_count} images; add captions, lower "
                "--min-count, or list the languages of the captions with --lang"
            )
        counts = Counter({key: max(counts[key], everywhere[key]) for key in counts | everywhere})
        order = [key for key, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
        columns[language] = np.array([rows.setdefault(key, len(rows)) for key in order], np.int64)
    return TagVocabulary(tuple(_tag_name(key, annotations.spellings) for key in rows), columns)


@dataclass(frozen=True)
class TagLabels:
    """One language's labels of N images: sparse, as dense parts for a batch on request."""

    positives: Sequence[NDArray[np.int64]]  # columns
    unknown: Sequence[NDArray[np.int64]]  # columns that the positives leave open
    space: NDArray[np.int64]  # (N,) row of `spaces`
    spaces: NDArray[np.bool_]  # (S, K) columns that images of a space are annotated with
    captioned: NDArray[np.bool_]  # (N,) has captions or tags of this language

    def dense(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(B, K) values 0 or 1, and (B, K) 1 where they are known."""
        known = self.spaces[self.space[rows]].astype(np.float32)
        values = np.zeros_like(known)
        for at, row in enumerate(rows):
            known[at, self.unknown[row]] = 0.0
            values[at, self.positives[row]] = 1.0
            known[at, self.positives[row]] = 1.0
        return values, known


def labels_of(
    annotations: Annotations,
    vocabulary: TagVocabulary,
    objects: bool = True,
    broader_unknown: bool = True,
) -> Mapping[str, TagLabels]:
    """The labels by language.

    `objects` False: an image has only what captions and tags say, as in COCO-CN. `broader_unknown`
    False, as there: whatever is not said is absent, an animal where a cat is named too.
    """
    return {
        language: _language_labels(annotations, vocabulary, language, objects, broader_unknown)
        for language in vocabulary.columns
    }


def _language_labels(
    annotations: Annotations,
    vocabulary: TagVocabulary,
    language: str,
    objects: bool,
    broader_unknown: bool,
) -> TagLabels:
    tags = [vocabulary.tags[at] for at in vocabulary.columns[language]]
    column = {tag.concept or f"{language}:{tag.label}": at for at, tag in enumerate(tags)}
    positives, unknown = [], []
    for mentions in annotations.mentions:
        keys = set(_keys(mentions, language, objects, annotations.spellings))
        positives.append(_columns(keys, column))
        unknown.append(_columns(_broader(keys) - keys if broader_unknown else (), column))
    named = [_space_of(mentions, language, objects) for mentions in annotations.mentions]
    rows = {name: row for row, name in enumerate(dict.fromkeys(named))}
    captioned = np.array([language in image.said for image in annotations.mentions], np.bool_)
    return TagLabels(
        positives,
        unknown,
        np.array([rows[name] for name in named], np.int64),
        _annotated_columns(annotations, column, tuple(rows)),
        captioned,
    )


def _space_of(mentions: Mentions, language: str, objects: bool) -> tuple[str, str]:
    """The columns that an image is annotated with, by name."""
    if language in mentions.said:
        return "captions", ""
    if objects and mentions.label_set:
        return "labels", mentions.label_set
    return ("objects", "") if objects and mentions.objects else ("nothing", "")


def _annotated_columns(
    annotations: Annotations, column: Mapping[str, int], spaces: Sequence[tuple[str, str]]
) -> NDArray[np.bool_]:
    """(S, K): all for captions; for labels and objects those that occur among their images."""
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    keys["captions", ""] = set(column)
    for mentions in annotations.mentions:
        keys["objects", ""] |= mentions.objects
        keys["labels", mentions.label_set] |= mentions.labels
    masks = np.zeros((len(spaces), len(column)), np.bool_)
    for row, name in enumerate(spaces):
        masks[row, _columns(keys[name], column)] = True
    return masks


def _keys(mentions: Mentions, language: str, objects: bool, spellings: _Spellings) -> Iterable[str]:
    """Concept ids and LANGUAGE:LABEL, as columns are called."""
    for key in mentions.said.get(language, ()):
        yield f"{language}:{spellings.commonest(key)}" if ":" in key else key
    if objects:
        yield from mentions.objects | mentions.labels


def _broader(keys: Iterable[str]) -> set[str]:
    return {above for key in keys if ":" not in key for above in concepts.broader(key)}


def _columns(keys: Iterable[str], column: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array(sorted(column[key] for key in keys if key in column), np.int64)


def _frequent(groups: Iterable[Iterable[str]], min_count: int) -> Counter[str]:
    counts = Counter(key for group in groups for key in group)
    return Counter({key: count for key, count in counts.items() if count >= min_count})


def _tag_name(key: str, spellings: _Spellings) -> TagName:
    if ":" in key:
        return TagName(spellings.commonest(key), key.split(":", 1)[0])
    return TagName(concepts.by_id(key).name("en"), "en", key)


def _mentions(image: CaptionedImage, languages: Sequence[str], spellings: _Spellings) -> Mentions:
    said: dict[str, set[str]] = {}
    for language in languages:
        texts = [
            caption.text
            for caption in image.captions.get(language, ())
            if caption.source not in LEFT_OUT_SOURCES
        ]
        if texts:
            said[language] = {key for text in texts for key in _said(text, language, spellings)}
    if image.tags_zh and "zh" in languages:
        tags = {_tag_key(tag, spellings) for tag in image.tags_zh}
        said["zh"] = said.get("zh", set()) | tags
    return Mentions(
        {language: frozenset(keys) for language, keys in said.items()},
        frozenset(_concepts(image.objects)),
        frozenset(image.concepts),
        image.labelled_set,
    )


def _said(text: str, language: str, spellings: _Spellings) -> Iterable[str]:
    named = named_in(text, language)
    yield from named.concepts
    for form, spelling in named.words.items():
        spellings.counts[f"{language}:{form}"][spelling] += 1
        yield f"{language}:{form}"


def _tag_key(tag: str, spellings: _Spellings) -> str:
    """A human tag: a concept's name as a whole, or a word of its own."""
    label = simplify(normalise(tag)).lower()
    plain = label.removesuffix("的") if len(label) > 2 else label  # 白色的
    concept = concepts.likeliest(label, "zh") or concepts.likeliest(plain, "zh")
    if concept is not None:
        return concept.id
    spellings.counts[f"zh:{label}"][label] += 1
    return f"zh:{label}"


def _concepts(names: Iterable[str]) -> Iterable[str]:
    known = map(concepts.likeliest, names)
    return [concept.id for concept in known if concept is not None]
