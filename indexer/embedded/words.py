"""Words found as words: an FTS5 index over folded tokens of captions, tags and file names.

Names, places and rare words are found this way, which a text encoder may not know. A word that
many documents have says little and is left to the vectors: only words of at most one in fifty
documents (or of 100) count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from capsearch.engine.fusion import word_weight
from capsearch.engine.records import Document
from capsearch.indexer.embedded.catalog import SqliteCatalog

TABLE = "words"
MAX_CANDIDATES = 2000  # a word


@dataclass(frozen=True, slots=True)
class WordMatches:
    """Documents (by number) in which rare words of a query occur, and each word's weight."""

    numbers: Mapping[str, frozenset[int]]
    weights: Mapping[str, float]  # of all words of the query

    def coverage(self, number: int) -> float:
        """The weight of the query's words that a document has, from 0 to 1."""
        total = sum(self.weights.values())
        found = sum(self.weights[word] for word, ids in self.numbers.items() if number in ids)
        return found / total if total else 0.0

    @property
    def all(self) -> frozenset[int]:
        """Every document with one of the words."""
        return frozenset().union(*self.numbers.values())


def match(catalog: SqliteCatalog, words: Sequence[str], documents: int) -> WordMatches:
    """Where the words of a query occur."""
    counts = {word: _count(catalog, word) for word in words}
    rare = [word for word, count in counts.items() if 0 < count <= max(100, documents // 50)]
    numbers = {word: frozenset(_numbers(catalog, quoted([word]))) for word in rare}
    weights = {word: word_weight(documents, count) for word, count in counts.items()}
    return WordMatches(numbers, weights)


def with_phrases(catalog: SqliteCatalog, phrases: Sequence[Sequence[str]]) -> list[int]:
    """The documents in which all of these occur, word after word."""
    return _numbers(catalog, " AND ".join(quoted(phrase) for phrase in phrases), limit=-1)


def quoted(words: Sequence[str]) -> str:
    """An FTS5 phrase; a folded token holds no quotation mark, but who knows."""
    return '"' + " ".join(word.replace('"', "") for word in words) + '"'


def searchable_text(document: Document) -> str:
    """Everything written about an image, and what its files and folders are called."""
    texts = [caption.text for caption in document.captions]
    texts += [tag.label for tag in document.tags]
    texts += [_path_text(path) for path in document.record.paths]
    return "\n".join(texts)


def _path_text(path: str) -> str:
    """The part of a path that says something: the file's name and the two folders above."""
    *folders, name = path.replace("\\", "/").split("/")
    return " ".join([*folders[-2:], name.rpartition(".")[0] or name])


def _count(catalog: SqliteCatalog, word: str) -> int:
    rows = catalog.rows("SELECT doc FROM words_vocab WHERE term = ?", (word,))
    return int(rows[0][0]) if rows else 0


def _numbers(catalog: SqliteCatalog, expression: str, limit: int = MAX_CANDIDATES) -> list[int]:
    sql = f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH ? LIMIT ?"
    return [row[0] for row in catalog.rows(sql, (expression, limit))]
