"""Large synthetic collections, made once and kept in the user's cache directory.

The catalog is filled by statements on whole tables: a million images one by one, as the pipeline
stores them, would take an hour. Everything else is as the pipeline leaves it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from platformdirs import user_cache_path

from capsearch.benchmarks import scale_described, synthetic
from capsearch.benchmarks.scale_vectors import CAPTIONS_PER_IMAGE, ScaleVectors
from capsearch.encoders.models import Model
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.collection import Collection

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

    With `described`, the captions are models', and there are tags (benchmarks.scale_described).
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
    languages = [one for one in synthetic.WORDS if one in model.text.languages]
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
    found = writer.catalog.rows(sql)
    for _, name in found:
        writer.catalog.connection.execute(f"DROP TRIGGER {name}")
    return [(statement,) for statement, _ in found]


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
        scale_described.describe(writer, model, ids)
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
            (one, text, language, CAPTIONS_PER_IMAGE * at + row)
            for at, one in enumerate(ids)
            for row, (language, text, _) in enumerate(_captions(texts, at))
        ),
    )


def _texts(model: Model) -> Sequence[Sequence[tuple[str, str, str]]]:
    """(language, sentence, its tokens) for each caption of an image."""
    return [
        [(one, text, " ".join(model.text.words(text))) for text in synthetic.sentences(one)]
        for one in caption_languages(model)
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
