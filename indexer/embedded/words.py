"""Words found as words: FTS5 indexes over folded tokens of captions, tags and file names.

Names, places and rare words are found this way, which a text encoder may not know. A word that
many documents have says little and is left to the vectors (engine.evidence.is_rare). What models
wrote has an index of its own, since it is worth less than what people wrote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from capsearch.encoders import concepts
from capsearch.engine.evidence import is_rare, word_weight
from capsearch.engine.records import TAKEN_FROM, Document
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter

_BATCH = 2048  # images
PEOPLES, GENERATED = "words", "generated_words"  # tables
_MAX_KNOWN = 10_000  # words whose counts are remembered
MAX_WORDS = 64  # of one query; rarer ones first
_BETWEEN_TEXTS = " ¶ "  # a token that no text folds to: phrases do not run across


@dataclass(frozen=True, slots=True)
class WordMatches:
    """The weight of the query's words in each document (by number) that has rare ones."""

    weights: Mapping[int, float]
    total: float  # of all words of the query

    def coverage(self, number: int | None) -> float:
        """The share of the query's words that a document has, by weight, from 0 to 1."""
        found = 0.0 if number is None else self.weights.get(number, 0.0)
        return found / self.total if found else 0.0


class WordCounts:
    """In how many documents words occur. SQLite reads through all of them to count."""

    def __init__(self) -> None:
        self._revision, self._known = -1, dict[tuple[str, str], int]()

    def of(
        self, catalog: SqliteCatalog, words: Sequence[str], table: str = PEOPLES
    ) -> dict[str, int]:
        """The counts as of the catalog's revision, each counted once; 0 for an unknown word."""
        revision = catalog.revision()
        if revision != self._revision or len(self._known) > _MAX_KNOWN:
            self._revision, self._known = revision, {}
        sql, known = f"SELECT doc FROM {table}_vocab WHERE term = ?", self._known
        for word in (one for one in words if (table, one) not in known):
            rows = catalog.rows(sql, (word,))
            known[table, word] = int(rows[0][0]) if rows else 0
        return {word: known[table, word] for word in words}


def match(
    catalog: SqliteCatalog,
    words: Sequence[str],
    documents: int,
    known: WordCounts,
    table: str = PEOPLES,
) -> WordMatches:
    """Where the words of a query occur: nowhere in a catalog that has no such table yet."""
    if not words or not _exists(catalog, table):
        return WordMatches({}, 0.0)
    counts = known.of(catalog, words, table)
    weights = {word: word_weight(documents, counts[word]) for word in words}
    rare = [word for word in words if is_rare(documents, counts[word])]
    found: dict[int, float] = defaultdict(float)
    for word in sorted(rare, key=lambda one: (counts[one], one))[:MAX_WORDS]:
        sql = f"SELECT rowid FROM {table} WHERE {table} MATCH ?"
        for (number,) in catalog.rows(sql, (_quoted([word]),)):
            found[number] += weights[word]
    return WordMatches(found, sum(weights.values()))


def with_phrases(
    catalog: SqliteCatalog, phrases: Sequence[Sequence[str]]
) -> tuple[str, tuple[str, ...]]:
    """A condition on images (`i`) in which all of these occur, word after word; its values.

    Each may occur in what people wrote or in what a model wrote.
    """
    found, tables = _found(catalog)
    conditions = " AND ".join([f"i.number IN ({found})"] * len(phrases))
    return conditions, tuple(_quoted(phrase) for phrase in phrases for _ in range(tables))


def occurrences(catalog: SqliteCatalog, phrases: Sequence[Sequence[str]], limit: int) -> int:
    """In how many documents the rarest of these occurs, at most; counted up to `limit`."""
    found, tables = _found(catalog)
    sql = f"SELECT count(*) FROM ({found} LIMIT {limit})"
    return min(int(catalog.rows(sql, [_quoted(one)] * tables)[0][0]) for one in phrases)


def texts_of(document: Document) -> Iterator[str]:
    """What people wrote about an image, and what its files and folders are called."""
    yield from (caption.text for caption in document.captions if not caption.generated)
    yield from (tag.label for tag in document.tags if not tag.generated)
    yield from (text for key, text in document.metadata.items() if key != TAKEN_FROM)
    yield from (_path_text(path) for path in document.record.paths)


def generated_texts_of(document: Document) -> Iterator[str]:
    """What models wrote about an image: captions, and the names of tags in every language."""
    yield from (caption.text for caption in document.captions if caption.generated)
    for tag in document.tags:
        if tag.generated and tag.concept in concepts.all_concepts():
            for names in concepts.by_id(tag.concept).names.values():
                yield from names
        elif tag.generated:
            yield tag.label


def tokens_of(
    document: Document | None,
    words_of: Callable[[str], Sequence[str]],
    texts: Callable[[Document], Iterator[str]] = texts_of,
) -> str:
    """What an index holds for a document: texts as tokens; nothing for one without a file."""
    found = () if document is None else texts(document)
    return _BETWEEN_TEXTS.join(" ".join(words_of(text)) for text in found)


def update_words(writer: CatalogWriter, words_of: Callable[[str], Sequence[str]]) -> Iterator[None]:
    """Indexes the words of images that something was written about; yields after each batch."""
    while stale := writer.stale_words(_BATCH):
        documents = writer.catalog.documents([image_id for image_id, _ in stale])
        found = [(number, documents.get(one)) for one, number in stale]
        with writer.transaction():
            for table, texts in ((PEOPLES, texts_of), (GENERATED, generated_texts_of)):
                writer.put_words(
                    table, [(number, tokens_of(one, words_of, texts)) for number, one in found]
                )
        yield


def _path_text(path: str) -> str:
    """The part of a path that says something: the file's name and the two folders above."""
    *folders, name = path.replace("\\", "/").split("/")
    return " ".join([*folders[-2:], name.rpartition(".")[0] or name])


def _quoted(words: Sequence[str]) -> str:
    """An FTS5 phrase; a folded token holds no quotation mark, but who knows."""
    return '"' + " ".join(word.replace('"', "") for word in words) + '"'


def _exists(catalog: SqliteCatalog, table: str) -> bool:
    return catalog.has_words() if table == PEOPLES else catalog.is_enriched()


def _found(catalog: SqliteCatalog) -> tuple[str, int]:
    """The documents with a phrase, in what anyone wrote, and how often it is to be given."""
    tables = [table for table in (PEOPLES, GENERATED) if _exists(catalog, table)]
    selects = [f"SELECT rowid FROM {one} WHERE {one} MATCH ?" for one in tables]
    return " UNION ALL ".join(selects), len(tables)
