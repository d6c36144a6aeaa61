"""A backend for tests: documents and vectors in memory, every document scored for every query."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import PurePath

import numpy as np

from capsearch.engine.evidence import Evidence, contributions, is_rare, tag_score, word_weight
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Document, Facet, Facets, Filters, Tag, Vectors
from capsearch.engine.tag_facets import ConceptTable, tag_facets


@dataclass(frozen=True, slots=True)
class FakeBackend:
    """The contract of a backend in its plainest form.

    `vectors` holds image vectors by id, `captions` one (image id, caption, vector) each. Tags are
    linked by `concepts` if it is given.
    """

    documents: Mapping[str, Document] = field(default_factory=dict)
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    captions: Sequence[tuple[str, Caption, Vectors]] = ()
    concepts: ConceptTable | None = None

    def __len__(self) -> int:
        return len(self._searchable())

    def captioned(self) -> bool:
        """Whether any caption has a vector."""
        return bool(self.captions)

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """Scores all documents that pass, sorts them, and takes the page."""
        if query.empty:
            return ()
        ids = [
            one
            for one in self._searchable()
            if self._passes(self.documents[one], filters) and self._has_phrases(one, query.phrases)
        ]
        matched = [self._matched(one, query) for one in ids]
        evidence = self._evidence(ids, query, matched)
        scores = query.fusion.scores(evidence)
        parts = query.fusion.log_odds(evidence)
        found = [
            Found(
                self.documents[one],
                float(scores[row]),
                contributions(evidence, parts, row, query.fusion.sources, matched[row][0]),
            )
            for row, one in enumerate(ids)
            if scores[row] > -np.inf and scores[row] >= query.min_score
        ]
        found.sort(key=lambda one: (-one.score, one.document.record.id))
        if found and found[0].score < query.min_best:
            return ()
        return tuple(found[offset : offset + limit])

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; those that are unknown or have no file are left out."""
        known = {one: self.documents[one] for one in ids if one in self.documents}
        return {one: document for one, document in known.items() if document.record.paths}

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector, or None."""
        return self.vectors.get(image_id) if self.lookup([image_id]) else None

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """Latest first, undated last; ties by id."""
        present = self.lookup(sorted(self.documents)).values()
        passing = [document for document in present if self._passes(document, filters)]
        dated = sorted(
            (document for document in passing if document.record.taken_at is not None),
            key=lambda document: document.record.taken_at or datetime.min,
            reverse=True,
        )
        undated = [document for document in passing if document.record.taken_at is None]
        return tuple([*dated, *undated][offset : offset + limit])

    def facets(self) -> Facets:
        """What the documents can be filtered by, with counts."""
        present = self.lookup(list(self.documents)).values()
        moments = [one.record.taken_at for one in present if one.record.taken_at is not None]
        return Facets(
            tags=self._tag_facets(present),
            folders=_counted(
                {str(folder) for path in one.record.paths for folder in PurePath(path).parents}
                for one in present
            ),
            caption_languages=_counted({text.language for text in one.captions} for one in present),
            written_by=_counted({_author(text) for text in one.captions} for one in present),
            earliest=min(moments).date() if moments else None,
            latest=max(moments).date() if moments else None,
        )

    def _passes(self, document: Document, filters: Filters) -> bool:
        return (
            _lies_under(document.record.paths, filters.folders)
            and all(self._tagged(document.tags, label) for label in filters.tags)
            and _taken_within(document.record.taken_at, filters)
            and _has_caption(document.captions, filters)
        )

    def _tagged(self, tags: Sequence[Tag], label: str) -> bool:
        ids = self.concepts.under(label) if self.concepts else frozenset[str]()
        return any(tag.label == label or tag.concept in ids for tag in tags)

    def _tag_facets(self, present: Collection[Document]) -> tuple[Facet, ...]:
        if self.concepts is None:
            return _counted({tag.label for tag in one.tags} for one in present)
        table = self.concepts
        labels = _counted({tag.label for tag in one.tags if not tag.concept} for one in present)
        ids = _counted(
            {above for tag in one.tags if tag.concept for above in table.broader(tag.concept)}
            for one in present
        )
        counts = [{one.value: one.images for one in found} for found in (labels, ids)]
        return tag_facets(counts[0], counts[1], table)

    def _searchable(self) -> list[str]:
        """Documents with a file and a vector, by id."""
        return [one for one in sorted(self.lookup(list(self.documents))) if one in self.vectors]

    def _evidence(
        self,
        ids: Sequence[str],
        query: EncodedQuery,
        matched: Sequence[tuple[Caption | None, float, float]],
    ) -> Evidence:
        known = {
            "caption": np.array([one[1] for one in matched], float),
            "generated": np.array([one[2] for one in matched], float),
            "words": np.array(self._coverage(ids, query.words, False), float),
            "generated_words": np.array(self._coverage(ids, query.words, True), float),
            "tag": np.array([self._tag_score(one, query) for one in ids], float),
        }
        if query.image is not None:
            products = [np.dot(self.vectors[one], query.image) for one in ids]
            known["image"] = np.array(products, float)
        if query.named is not None and ids:
            known["image"] += query.named.scores(np.stack([self.vectors[one] for one in ids]))
        return Evidence.of(len(ids), **known)

    def _matched(self, image_id: str, query: EncodedQuery) -> tuple[Caption | None, float, float]:
        """The best caption, and the best score of people's and of models' captions."""
        best: dict[bool, float] = {False: np.nan, True: np.nan}
        chosen: tuple[float, Caption | None] = (-np.inf, None)
        for owner, caption, vector in sorted(self.captions, key=lambda one: one[1].generated):
            if owner != image_id or query.caption is None:
                continue
            score = float(np.float32(np.dot(vector, query.caption)))
            score += query.caption_offsets.get(caption.language, 0.0)
            best[caption.generated] = float(np.fmax(best[caption.generated], score))
            if score > chosen[0]:
                chosen = (score, caption)
        return chosen[1], best[False], best[True]

    def _tag_score(self, image_id: str, query: EncodedQuery) -> float:
        tags = sorted(self.documents[image_id].tags, key=lambda tag: tag.confidence)
        return tag_score(query.concepts, {one.concept: one.confidence for one in tags})

    def _texts(self, image_id: str, generated: bool) -> list[list[str]]:
        """The words of every caption and tag by people, and of paths; or of those by models."""
        document = self.documents[image_id]
        texts = [one.text for one in document.captions if one.generated == generated]
        texts += [tag.label for tag in document.tags if tag.generated == generated]
        texts += [] if generated else document.record.paths
        return [re.findall(r"\w+", text.lower()) for text in texts]

    def _coverage(self, ids: Sequence[str], words: Sequence[str], generated: bool) -> list[float]:
        """The weight of the query's rare words that each document has, from 0 to 1."""
        present = {one: set().union(*self._texts(one, generated)) for one in self._searchable()}
        count = Counter(word for text in present.values() for word in text)
        weights = {word: word_weight(len(self), count[word]) for word in words}
        rare = [word for word in words if is_rare(len(self), count[word])]
        return [
            sum(weights[word] for word in rare if word in present[one])
            / (sum(weights.values()) or 1.0)
            for one in ids
        ]

    def _has_phrases(self, image_id: str, phrases: Sequence[Sequence[str]]) -> bool:
        written = (*self._texts(image_id, False), *self._texts(image_id, True))
        texts = [f" {' '.join(text)} " for text in written]
        return all(any(f" {' '.join(phrase)} " in text for text in texts) for phrase in phrases)


def _lies_under(paths: Sequence[str], folders: Sequence[str]) -> bool:
    return not folders or any(
        PurePath(path).is_relative_to(folder) for path in paths for folder in folders
    )


def _taken_within(taken_at: datetime | None, filters: Filters) -> bool:
    if filters.taken_from is None and filters.taken_until is None:
        return True
    if taken_at is None:
        return False
    earliest = datetime.combine(filters.taken_from or datetime.min.date(), time.min)
    latest = datetime.combine(filters.taken_until or datetime.max.date(), time.max)
    return earliest <= taken_at <= latest


def _has_caption(captions: Sequence[Caption], filters: Filters) -> bool:
    """A language and an author must be met by one and the same caption."""
    if filters.caption_language is None and filters.written_by is None:
        return True
    return any(
        filters.caption_language in (None, caption.language)
        and filters.written_by in (None, _author(caption))
        for caption in captions
    )


def _author(caption: Caption) -> str:
    return "models" if caption.generated else "people"


def _counted(values: Iterable[set[str]]) -> tuple[Facet, ...]:
    """How many documents have each value; most first, then by name."""
    counts = Counter(value for one in values for value in one)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Facet(value, images) for value, images in ordered)
