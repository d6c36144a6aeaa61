"""Large synthetic collections, made once and kept in the user's cache directory.

Vectors are mixtures of the model's real ones, with noise: the base is the model's document bank, a
few hundred real images and captions. A row is a mixture of three of them and of random directions,
so that there are as many different rows as are asked for. `NOISE` makes queries score on the
mixtures as they do on real images (trio: 6,937 photos of validation and test; the best, tenth and
hundredth score of 162 sentences are .37, .31 and .25).

Captions are people's, or those and tags by models, as `enrich` leaves them: an image has the tags
whose names it scores best on, of some that the queries name and some others, as a tagger that looks
at images would choose them.

The catalog is filled by statements on whole tables: a million images one by one, as the pipeline
stores them, would take an hour. `exact` has the ten best, with every document scored.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from capsearch.benchmarks import timing
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.text import stored_evidence
from capsearch.encoders.text import concepts
from capsearch.encoders.text.concepts.mentions import mentioned
from capsearch.engine.evidence import Evidence
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import GENERATED, Vectors
from capsearch.engine.vectors import Rows, as_float32, strip_bias, unit
from capsearch.indexer.sqlite.arrays import sequential
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.writer import CatalogWriter

NOISE = 1.4  # length of the random part beside a mixture of length 1
CAPTIONS_PER_IMAGE = 3
_BLOCK = 8192  # images
_MIXED = 3  # documents of the bank in each row
_DIRECTIONS = 4096


@dataclass(frozen=True)
class ScaleVectors:
    """`count` images and their captions, the same ones on every machine."""

    model: Model
    count: int

    def images(self) -> Iterator[Vectors]:
        """(n, D) rows of images, block by block."""
        bank = self._bank.images
        for start in range(0, self.count, _BLOCK):
            yield self._mixtures(bank, start, self._sizes(start), salt=0)

    def captions(self) -> Iterator[Vectors]:
        """(n * CAPTIONS_PER_IMAGE, C) rows of captions, those of one image side by side."""
        bank = self._bank.captions[self._partner]
        for start in range(0, self.count, _BLOCK):
            each = [
                self._mixtures(bank, start, self._sizes(start), salt)
                for salt in range(1, 1 + CAPTIONS_PER_IMAGE)
            ]
            yield np.stack(each, axis=1).reshape(-1, bank.shape[1])

    def _sizes(self, start: int) -> int:
        return min(_BLOCK, self.count - start)

    def _mixtures(self, bank: Vectors, start: int, count: int, salt: int) -> Vectors:
        """Rows of the images from `start`: the bank's rows are the same for images and captions."""
        chosen = np.random.default_rng([start])
        picks = chosen.integers(0, len(bank), (count, _MIXED))
        weights = chosen.dirichlet(np.ones(_MIXED), count).astype(np.float32)
        noise = np.random.default_rng([start, salt]).integers(0, _DIRECTIONS, (count, 2))
        base, directions = unit(strip_bias(bank)), _directions(bank.shape[1] - 1)
        rows = np.empty((count, bank.shape[1]), np.float32)
        mixed = weights[:, :1] * base[picks[:, 0]]
        for at in range(1, _MIXED):
            mixed += weights[:, at : at + 1] * base[picks[:, at]]
        mixed = unit(mixed)
        mixed += NOISE / np.sqrt(2, dtype=np.float32) * directions[noise[:, 0]]
        mixed += NOISE / np.sqrt(2, dtype=np.float32) * directions[noise[:, 1]]
        rows[:, :-1] = unit(mixed)
        rows[:, -1] = (weights * bank[:, -1][picks]).sum(axis=1)  # hubness penalties mix as well
        return rows

    @cached_property
    def _bank(self) -> DocumentBank:
        return stored_evidence(self.model).bank

    @cached_property
    def _partner(self) -> NDArray[np.int64]:
        """For each image of the bank the caption that answers queries as the image does."""
        visual, caption = query_vectors(self.model)
        profiles = [self._bank.images @ visual.T, self._bank.captions @ caption.T]
        images, captions = (
            unit(profile - profile.mean(axis=1, keepdims=True)) for profile in profiles
        )
        return np.asarray((images @ captions.T).argmax(axis=1))


def query_vectors(model: Model) -> tuple[Vectors, Vectors]:
    """(Q, D) and (Q, C): the synthetic sentences of all languages against images and captions."""
    encoded = [
        model.text.encode(timing.sentences(language), language)
        for language in timing.WORDS
        if language in model.text.languages
    ]
    return (
        np.concatenate([queries.visual for queries in encoded]),
        np.concatenate([queries.caption for queries in encoded]),
    )


@cache
def _directions(width: int) -> Vectors:
    return timing.vectors(_DIRECTIONS, width, seed=width)


TAGS = 8  # of each image
SOURCE = f"{GENERATED}bench"
_NAMED, _OTHERS = 40, 160  # concepts: of the queries, and others
_LIKELY = 2.5  # standard deviations above the mean score: as likely as not


class Descriptions:
    """Captions and tags of images by their numbers, the same ones on every machine."""

    def __init__(self, model: Model, images: Rows) -> None:
        self.tokens = cache(lambda text: " ".join(model.text.words(text)))
        languages = [language for language in timing.WORDS if language in model.text.languages]
        chosen = [languages[at % len(languages)] for at in range(CAPTIONS_PER_IMAGE)]
        self._texts = [(language, timing.sentences(language)) for language in chosen]
        self._concepts = _concepts(model, self._texts)
        self._chosen, self._shares = _tags(model, self._concepts, images)

    def captions(self, at: int) -> Iterator[tuple[str, str]]:
        """(language, text)."""
        for row, (language, texts) in enumerate(self._texts):
            yield language, texts[(at * (row + 11) + row * 31) % len(texts)]

    def tags(self, at: int) -> dict[str, float]:
        """Concepts and their probabilities."""
        chosen = [self._concepts[row] for row in self._chosen[at].tolist()]
        return dict(zip(chosen, self._shares[at].round(3).tolist(), strict=True))

    def words(self, at: int) -> str:
        """What the index of generated words holds."""
        texts = [text for _, text in self.captions(at)] + [
            _label(concept) for concept in self.tags(at)
        ]
        return " ¶ ".join(self.tokens(text) for text in texts)


def describe(writer: CatalogWriter, model: Model, ids: Sequence[str]) -> None:
    """Adds generated captions, one for each row of the vector file, and generated tags."""
    connection = writer.catalog.connection
    written = Descriptions(model, writer.catalog.array("vectors").view())
    connection.executemany(
        "INSERT INTO captions (image_id, text, language, source, origin, encoded, slot, confidence)"
        f" VALUES (?, ?, ?, '{SOURCE}', '', 1, ?, 0.5)",
        (
            (ids[at], text, language, CAPTIONS_PER_IMAGE * at + row)
            for at in range(len(ids))
            for row, (language, text) in enumerate(written.captions(at))
        ),
    )
    connection.executemany(
        "INSERT INTO tags (image_id, label, language, confidence, source, concept) "
        f"VALUES (?, ?, 'en', ?, '{SOURCE}', ?) ON CONFLICT DO NOTHING",
        (
            (ids[at], _label(concept), share, concept)
            for at in sorted(range(len(ids)), key=ids.__getitem__)
            for concept, share in written.tags(at).items()
        ),
    )
    connection.executemany(
        "INSERT INTO generated_words (rowid, tokens) VALUES (?, ?)",
        ((at + 1, written.words(at)) for at in range(len(ids))),
    )
    connection.executemany(
        f"INSERT INTO enriched VALUES (?, '{SOURCE}', '{SOURCE}')", ((image,) for image in ids)
    )


def _concepts(model: Model, texts: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The broadest that most sentences name, and others."""
    named = Counter(
        max(sorted(ids), key=lambda concept: len(concepts.narrower(concept)))
        for language, some in texts
        for text in some
        for ids in mentioned(text, language)
    )
    chosen = [concept for concept, _ in named.most_common(_NAMED)]
    others = sorted(concepts.all_concepts().keys() - named.keys())
    return chosen + others[:: len(others) // _OTHERS][:_OTHERS]


def _tags(
    model: Model, chosen: Sequence[str], images: Rows
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(N, TAGS) concepts of each image by their place in `chosen`, and their probabilities."""
    names = model.text.encode([_label(concept) for concept in chosen], "en").visual
    scores = np.concatenate([block @ names.T for block in sequential(images)])
    scores = (scores - scores.mean(axis=0)) / scores.std(axis=0)
    best = np.argpartition(-scores, TAGS, axis=1)[:, :TAGS]
    return best, 1 / (1 + np.exp(_LIKELY - np.take_along_axis(scores, best, axis=1)))


def _label(concept_id: str) -> str:
    return concepts.by_id(concept_id).name("en")


VERSION = 2  # of what is generated; a collection of another one is made again
SHARES = (1, 10, 50)  # percent of the images that have the tag `share_tag`
LATEST, DAYS = datetime(2025, 1, 1), 20 * 365
_DATED = 9  # of ten images
_CACHE_PAGES = 1 << 18  # of the catalog while it is filled: its trees are written in random order


def share_tag(percent: int) -> str:
    """A tag that so many percent of the images have."""
    return f"bench {percent}"


def ensure(
    model: Model, count: int, report: Callable[[str], None], described: bool = False
) -> Path:
    """The folder of a collection of `count` images; made first if it is not there.

    With `described`, the captions are models', and there are tags (benchmarks.scale_collection).
    """
    name = f"{model.name}-{model.digest}-{count}-{VERSION}" + ("-described" if described else "")
    folder = user_cache_path("capsearch") / "scale" / name
    if not folder.is_dir():
        report(f"making {count:,} images with {CAPTIONS_PER_IMAGE} captions each in {folder}")
        partial = folder.with_name(name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
        _make(partial, model, count, described)
        partial.rename(folder)
    return folder


def caption_languages(model: Model) -> tuple[str, ...]:
    """The languages of an image's captions, in the order of their rows."""
    languages = [language for language in timing.WORDS if language in model.text.languages]
    return tuple(languages[at % len(languages)] for at in range(CAPTIONS_PER_IMAGE))


def image_id(number: int) -> str:
    """As of a file's content: without any order."""
    return hashlib.blake2b(number.to_bytes(8, "big", signed=True), digest_size=16).hexdigest()


def _make(folder: Path, model: Model, count: int, described: bool) -> None:
    with Collection.create(folder, model) as collection:
        _fill_arrays(collection, ScaleVectors(model, count), count)
        connection = collection.catalog.connection
        connection.execute(f"PRAGMA cache_size = {_CACHE_PAGES}")
        writer = CatalogWriter(collection.catalog)
        with writer.transaction():
            triggers = _drop_triggers(writer)
            _fill_catalog(writer, model, count, described)
            for (statement,) in triggers:
                connection.execute(statement)


def _fill_arrays(collection: Collection, vectors: ScaleVectors, count: int) -> None:
    writer, catalog = CatalogWriter(collection.catalog), collection.catalog
    arrays = [
        catalog.array("vectors").filled(vectors.images()),
        catalog.array("captions").filled(vectors.captions()),
    ]
    features = catalog.array("features")
    with features.path.open("wb") as file:
        file.truncate(count * features.stride)  # zeros that take no space: nothing reads them
    with writer.transaction():
        for array in (*arrays, features.with_rows(count)):
            writer.set_array(array)


def _drop_triggers(writer: CatalogWriter) -> list[tuple[str]]:
    """Each would run once a row; returns the statements that make them again."""
    sql = "SELECT sql, name FROM sqlite_master WHERE type = 'trigger'"
    triggers = writer.catalog.rows(sql)
    for _, name in triggers:
        writer.catalog.connection.execute(f"DROP TRIGGER {name}")
    return [(statement,) for statement, _ in triggers]


def _fill_catalog(writer: CatalogWriter, model: Model, count: int, described: bool) -> None:
    connection = writer.catalog.connection
    ids = [image_id(number) for number in range(count)]
    order = sorted(range(count), key=ids.__getitem__)
    texts = _texts(model)
    connection.executemany(
        "INSERT INTO images (id, width, height, size_bytes, format, taken_at, slot, number, "
        "words_current) VALUES (?, 640, 480, 100000, 'JPEG', ?, ?, ?, 1)",
        ((ids[at], _taken(at), at, at + 1) for at in order),
    )
    connection.executemany(
        "INSERT INTO files VALUES (?, ?, 0, 100000, '')",
        ((_path(at), ids[at]) for at in range(count)),
    )
    connection.executemany(
        "INSERT INTO tags (image_id, label, language, confidence, source) "
        "VALUES (?, ?, 'en', 1.0, 'xmp')",
        (
            (ids[at], share_tag(percent))
            for at in order
            for percent in SHARES
            if at % (100 // percent) == 0
        ),
    )
    connection.executemany(
        "INSERT INTO words (rowid, tokens) VALUES (?, ?)",
        ((at + 1, _tokens([] if described else texts, at)) for at in range(count)),
    )
    if described:
        describe(writer, model, ids)
    else:
        _fill_captions(writer, ids, texts)
    connection.execute("INSERT INTO roots (path, indexed_at) VALUES ('/bench', '')")


def _fill_captions(
    writer: CatalogWriter, ids: Sequence[str], texts: Sequence[Sequence[tuple[str, str, str]]]
) -> None:
    writer.catalog.connection.executemany(
        "INSERT INTO captions (image_id, text, language, source, origin, encoded, slot) "
        "VALUES (?, ?, ?, 'csv', 'captions.csv', 1, ?)",
        (
            (image, text, language, CAPTIONS_PER_IMAGE * at + row)
            for at, image in enumerate(ids)
            for row, (language, text, _) in enumerate(_captions(texts, at))
        ),
    )


def _texts(model: Model) -> Sequence[Sequence[tuple[str, str, str]]]:
    """(language, sentence, its tokens) for each caption of an image."""
    return [
        [(language, text, " ".join(model.text.words(text))) for text in timing.sentences(language)]
        for language in caption_languages(model)
    ]


def _captions(
    texts: Sequence[Sequence[tuple[str, str, str]]], at: int
) -> Iterator[tuple[str, str, str]]:
    """Three captions of an image; the catalog wants texts of one image to differ."""
    for row, sentences in enumerate(texts):
        yield sentences[(at * (row + 7) + row * 71) % len(sentences)]


def _tokens(texts: Sequence[Sequence[tuple[str, str, str]]], at: int) -> str:
    return " ¶ ".join([*(tokens for _, _, tokens in _captions(texts, at)), f"img{at}"])


def _taken(at: int) -> str | None:
    if at % 10 >= _DATED:
        return None
    return (LATEST - timedelta(days=at * 7919 % DAYS, seconds=at % 86400)).isoformat()


def _path(at: int) -> str:
    return f"/bench/{at // 1000:05d}/img{at}.jpg"


TOP = 10


def exact(
    collection: Collection, model: Model, queries: Sequence[EncodedQuery]
) -> list[tuple[str, ...]]:
    """The ids of the ten best images by each query; all have captions, or none of the queries."""
    images, captions = (collection.catalog.array(name).view() for name in ("vectors", "captions"))
    known = {"image": _image_scores(images, queries)}  # (N, Q)
    if queries[0].caption is not None:
        textual = np.stack([query.caption for query in queries if query.caption is not None])
        offsets = [
            [query.caption_offsets.get(language, 0.0) for query in queries]
            for language in caption_languages(model)
        ]
        scores = _scores(captions, textual)
        known["caption"] = _best_of_each(scores, np.array(offsets, np.float32))
    best = []
    for at, query in enumerate(queries):
        evidence = {source: scores[:, at].astype(float) for source, scores in known.items()}
        fused = query.fusion.scores(Evidence.of(len(images), **evidence))
        rows = np.argpartition(-fused, TOP)[:TOP]
        best.append(tuple(image_id(row) for row in rows[np.argsort(-fused[rows])].tolist()))
    return best


def recall(hits: Sequence[Sequence[object]], exact: Sequence[Sequence[object]]) -> float:
    """The mean share of the exact ten best that was found."""
    pairs = zip(hits, exact, strict=True)
    return float(np.mean([len({*hits} & {*best}) / len(best) for hits, best in pairs]))


def _image_scores(rows: Rows, queries: Sequence[EncodedQuery]) -> NDArray[np.float32]:
    """(N, Q) inner products, and what queries name."""
    scores = _scores(rows, np.stack([query.image for query in queries if query.image is not None]))
    for at, query in enumerate(queries):
        if query.named is not None:
            scores[:, at] += query.named.of_products(_scores(rows, query.named.weights))
    return scores


def _scores(rows: Rows, queries: Vectors) -> NDArray[np.float32]:
    """(N, Q)."""
    return np.concatenate([as_float32(block) @ queries.T for block in sequential(rows)])


def _best_of_each(scores: NDArray[np.float32], offsets: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N * captions, Q) -> (N, Q): the best caption of each image."""
    by_image = scores.reshape(-1, CAPTIONS_PER_IMAGE, scores.shape[1])
    by_image += offsets
    return np.asarray(by_image.max(axis=1))
