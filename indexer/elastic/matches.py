"""What a query says besides its vectors: words that people and that models wrote, and concepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from capsearch.encoders import concepts
from capsearch.engine.evidence import is_rare, tag_score, word_weight
from capsearch.indexer.elastic.documents import tag_confidences
from capsearch.indexer.elastic.mapping import GENERATED_WORDS, WORDS
from capsearch.indexer.embedded.words import MAX_WORDS

MAX_WORD_HITS = 10_000  # documents of one answer that were found by the words of one field
Hit: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """The rare words of a query in one field, their weights, and those that are searched by."""

    field: str = WORDS
    rare: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    total: float = 0.0  # weight of all words of the query
    searched: tuple[str, ...] = ()  # the rarest
    documents: int = 0  # that have any of these, at most
    outside: float = 0.0  # coverage that a document with none of these can have

    @classmethod
    def of(
        cls, field: str, words: Sequence[str], containing: Sequence[int], documents: int
    ) -> Words:
        """`containing` documents have each word, of so many `documents`.

        An answer has room for MAX_WORD_HITS documents; words beyond that count in scores, but
        documents are not searched by them.
        """
        weights = [word_weight(documents, count) for count in containing]
        known = sorted(zip(containing, words, weights, strict=True))
        rare = [one for one in known if is_rare(documents, one[0])][:MAX_WORDS]
        running = list(accumulate(count for count, _, _ in rare))
        room = sum(count <= MAX_WORD_HITS for count in running)
        total = sum(weights)
        left = sum(weight for _, _, weight in rare[room:])
        return cls(
            field,
            tuple(word for _, word, _ in rare),
            tuple(weight for _, _, weight in rare),
            total,
            tuple(word for _, word, _ in rare[:room]),
            running[room - 1] if room else 0,
            left / total if total else 0.0,
        )

    def names(self) -> dict[str, str]:
        """The rare words by the names that a hit lists in `matched_queries`."""
        return {f"{self.field}:{number}": word for number, word in enumerate(self.rare)}

    def coverage(self, hit: Hit) -> float:
        """The share of the query's words that a hit has, by weight, from 0 to 1."""
        if not self.total:
            return 0.0
        matched = set(hit.get("matched_queries", ()))
        named = zip(self.names(), self.weights, strict=True)
        return sum(weight for name, weight in named if name in matched) / self.total


@dataclass(frozen=True, slots=True)
class Matches:
    """The words of a query in what people and in what models wrote, and what it names."""

    words: Words = Words(WORDS)
    generated: Words = Words(GENERATED_WORDS)
    concepts: tuple[frozenset[str], ...] = ()

    @property
    def fields(self) -> tuple[Words, Words]:
        """The words by field."""
        return self.words, self.generated

    @property
    def rare(self) -> bool:
        """Whether any word is rare in any field."""
        return any(one.rare for one in self.fields)

    @property
    def documents(self) -> int:
        """How many documents are found by words, at most."""
        return sum(one.documents for one in self.fields)

    def tag(self, hit: Hit) -> float:
        """How sure the tags of a hit are of what the query names."""
        return tag_score(self.concepts, tag_confidences(hit["_source"])) if self.concepts else 0.0


def broadest(ids: frozenset[str]) -> list[str]:
    """Those of some concepts that none of the others is broader than."""
    known = concepts.all_concepts()
    return sorted(
        one for one in ids if one not in known or not (ids & concepts.broader(one)) - {one}
    )
