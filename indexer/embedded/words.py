"""Words found as words: an FTS5 index over folded tokens of captions, tags and file names.

Names, places and rare words are found this way, which a text encoder may not know. A word that
many documents have says little and is left to the vectors (engine.evidence.is_rare).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from capsearch.engine.evidence import is_rare, word_weight
from capsearch.engine.records import TAKEN_FROM, Document
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter

_BATCH = 2048  # images
_MAX_KNOWN = 10_000  # words whose counts are remembered
MAX_WORDS = 64  # of one query; rarer ones first
_BETWEEN_TEXTS = " ¶ "  # a token that no text folds to: phrases do not run across


@dataclass(frozen=True, slots=True)
class WordMatches:
    """The weight of the query's words in each document (by number) that has rare ones."""

    weights: Mapping[int, float]
    total: float  # of all words of the query

    def coverage(self, number: int) -> float:
        """The share of the query's words that a document has, by weight, from 0 to 1."""
        return self.weights.get(number, 0.0) / self.total if self.total else 0.0


class WordCounts:
    """In how many documents words occur. SQLite reads through all of them to count."""

    def __init__(self) -> None:
        self._revision, self._known = -1, dict[str, int]()

    def of(self, catalog: SqliteCatalog, words: Sequence[str]) -> dict[str, int]:
        """The counts as of the catalog's revision, each counted once; 0 for an unknown word."""
        revision = catalog.revision()
        if revision != self._revision or len(self._known) > _MAX_KNOWN:
            self._revision, self._known = revision, {}
        sql, known = "SELECT doc FROM words_vocab WHERE term = ?", self._known
        for word in (one for one in words if one not in known):
            rows = catalog.rows(sql, (word,))
            known[word] = int(rows[0][0]) if rows else 0
        return {word: known[word] for word in words}


def match(
    catalog: SqliteCatalog, words: Sequence[str], documents: int, known: WordCounts
) -> WordMatches:
    """Where the words of a query occur: nowhere in a catalog that has no words yet."""
    if not words or not catalog.has_words():
        return WordMatches({}, 0.0)
    counts = known.of(catalog, words)
    weights = {word: word_weight(documents, counts[word]) for word in words}
    rare = [word for word in words if is_rare(documents, counts[word])]
    found: dict[int, float] = defaultdict(float)
    for word in sorted(rare, key=lambda one: (counts[one], one))[:MAX_WORDS]:
        sql = "SELECT rowid FROM words WHERE words MATCH ?"
        for (number,) in catalog.rows(sql, (_quoted([word]),)):
            found[number] += weights[word]
    return WordMatches(found, sum(weights.values()))


def with_phrases(phrases: Sequence[Sequence[str]]) -> tuple[str, tuple[str]]:
    """A condition on images (`i`) in which all of these occur, word after word; its values."""
    expression = " AND ".join(_quoted(phrase) for phrase in phrases)
    return "i.number IN (SELECT rowid FROM words WHERE words MATCH ?)", (expression,)


def occurrences(catalog: SqliteCatalog, phrases: Sequence[Sequence[str]], limit: int) -> int:
    """In how many documents all of these occur, counted up to `limit`."""
    _, values = with_phrases(phrases)
    sql = f"SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT {limit})"
    return int(catalog.rows(sql, values)[0][0])


def update_words(writer: CatalogWriter, words_of: Callable[[str], Sequence[str]]) -> Iterator[None]:
    """Indexes the words of images that something was written about; yields after each batch."""
    while stale := writer.stale_words(_BATCH):
        documents = writer.catalog.documents([image_id for image_id, _ in stale])
        tokens = [(number, tokens_of(documents.get(one), words_of)) for one, number in stale]
        with writer.transaction():
            writer.put_words(tokens)
        yield


def tokens_of(document: Document | None, words_of: Callable[[str], Sequence[str]]) -> str:
    """What the index holds for a document: its texts as tokens; nothing for one without a file."""
    texts = () if document is None else texts_of(document)
    return _BETWEEN_TEXTS.join(" ".join(words_of(text)) for text in texts)


def texts_of(document: Document) -> Iterator[str]:
    """Everything written about an image, and what its files and folders are called."""
    yield from (caption.text for caption in document.captions)
    yield from (tag.label for tag in document.tags)
    yield from (text for key, text in document.metadata.items() if key != TAKEN_FROM)
    yield from (_path_text(path) for path in document.record.paths)


def _path_text(path: str) -> str:
    """The part of a path that says something: the file's name and the two folders above."""
    *folders, name = path.replace("\\", "/").split("/")
    return " ".join([*folders[-2:], name.rpartition(".")[0] or name])


def _quoted(words: Sequence[str]) -> str:
    """An FTS5 phrase; a folded token holds no quotation mark, but who knows."""
    return '"' + " ".join(word.replace('"', "") for word in words) + '"'
