"""Reading the catalog: records, captions, tags and filters from SQLite.

Filters as SQL: conditions on images, and the tables that pass them.

The values a collection can be filtered by: tags, folders, dates and captions, with counts.

Counting takes time that grows with the collection, so the writer stores the counts now and then
and at the end of a run, and readers take them from there.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.encoders.text import concepts
from capsearch.engine.errors import IndexProblem
from capsearch.engine.query import tag_facets
from capsearch.engine.records import (
    GENERATED,
    Caption,
    Document,
    Facet,
    Facets,
    Filters,
    ImageRecord,
    Tag,
)
from capsearch.indexer.sources.scan import spellings, under
from capsearch.indexer.sqlite.arrays import VectorFile
from capsearch.indexer.sqlite.schema import close, connect
from capsearch.indexer.store import FileState

if TYPE_CHECKING:
    from capsearch.indexer.sqlite.writer import CatalogWriter


_MATCHES_WRITER = {"people": "NOT GLOB", "models": "GLOB"}
# A label, or a concept of those in a JSON array: two searches by index.
_TAGGED = "(label = ? OR (concept != '' AND concept IN (SELECT value FROM json_each(?))))"
_LABELLED = "label = ?"


def where(filters: Filters) -> tuple[str, list[object]]:
    """A condition on images `i`, checked for each: they have a file and pass the filters."""
    conditions = ["EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"]
    values: list[object] = []
    for condition, operands in _conditions(filters):
        conditions.append(condition)
        values.extend(operands)
    return " AND ".join(conditions), values


def _conditions(filters: Filters) -> Iterator[tuple[str, list[object]]]:
    """(SQL condition, its values) for each field of `filters` that is set."""
    if filters.folders:
        ranges, bounds = _inside(filters.folders)
        yield f"EXISTS (SELECT 1 FROM files WHERE image_id = i.id AND ({ranges}))", bounds
    for label in filters.tags:
        condition, values = _tagged(label)
        yield f"EXISTS (SELECT 1 FROM tags WHERE image_id = i.id AND {condition})", values
    yield from _dates(filters)
    if filters.caption_language is not None or filters.written_by is not None:
        yield _caption_condition(filters)


def _inside(folders: Sequence[str]) -> tuple[str, list[object]]:
    """A condition on paths below one of these folders, however it is spelt; its values."""
    spelt = [one for folder in folders for one in spellings(folder)]
    bounds: list[object] = [bound for folder in spelt for bound in under(folder)]
    return " OR ".join(["path >= ? AND path < ?"] * len(spelt)), bounds


def sources(filters: Filters) -> Iterator[tuple[str, list[object]]]:
    """(FROM ... WHERE ..., its values) with the images that pass one of the filters."""
    for label in filters.tags:
        condition, values = _tagged(label)
        yield f"FROM tags WHERE {condition}", values
    if filters.folders:
        ranges, bounds = _inside(filters.folders)
        yield f"FROM files WHERE {ranges}", bounds
    if filters.caption_language is not None:
        yield "FROM captions WHERE language = ?", [filters.caption_language]
    if dates := [*_dates(filters)]:
        conditions = " AND ".join(condition for condition, _ in dates)
        values = [value for _, operands in dates for value in operands]
        yield f"FROM (SELECT id AS image_id FROM images WHERE {conditions})", values


def _dates(filters: Filters) -> Iterator[tuple[str, list[object]]]:
    if filters.taken_from is not None:
        yield "taken_at >= ?", [filters.taken_from.isoformat()]
    if filters.taken_until is not None:
        # "T~" sorts after every time of that day, and unlike the next day exists for every date.
        yield "taken_at <= ?", [filters.taken_until.isoformat() + "T~"]


def _tagged(label: str) -> tuple[str, list[object]]:
    """A condition on tags: this label, another name of what it names, or something narrower."""
    ids = sorted(concepts.under(label))
    return (_TAGGED, [label, json.dumps(ids)]) if ids else (_LABELLED, [label])


def _caption_condition(filters: Filters) -> tuple[str, list[object]]:
    """A single caption must have both the language and the author."""
    conditions, values = ["image_id = i.id"], list[object]()
    if filters.caption_language is not None:
        conditions.append("language = ?")
        values.append(filters.caption_language)
    if filters.written_by is not None:
        conditions.append(f"source {_MATCHES_WRITER[filters.written_by]} '{GENERATED}*'")
    return f"EXISTS (SELECT 1 FROM captions WHERE {' AND '.join(conditions)})", values


def below(roots: Sequence[str | Path], column: str = "path") -> tuple[str, list[object]]:
    """A condition on a path: it is one of these, or below one of them; its values."""
    condition = " OR ".join([f"{column} = ? OR ({column} >= ? AND {column} < ?)"] * len(roots))
    values: list[object] = [bound for root in roots for bound in (str(root), *under(root))]
    return f"({condition})" if roots else "FALSE", values


SEARCHABLE = "searchable"  # meta: "REVISION COUNT"
_STATE = (
    "SELECT 'meta', key, value, NULL, NULL, NULL FROM meta "
    f"WHERE key IN ('revision', '{SEARCHABLE}', 'model') UNION ALL "
    "SELECT 'array', name, generation, dtype, width, rows FROM arrays UNION ALL "
    "SELECT 'meta', 'captioned', EXISTS (SELECT 1 FROM captions WHERE slot IS NOT NULL), "
    "NULL, NULL, NULL"
)
# Of images by id: the image itself, its files, captions, tags and other texts.
_DOCUMENTS = " UNION ALL ".join(
    f"SELECT {columns} WHERE {of} IN ({{0}})"
    for of, columns in (
        ("id", "id, 0, width, height, size_bytes, format, taken_at, NULL FROM images"),
        ("image_id", "image_id, 1, path, NULL, NULL, NULL, NULL, NULL FROM files"),
        ("image_id", "image_id, 2, text, language, source, confidence, slot, id FROM captions"),
        ("image_id", "image_id, 3, label, language, confidence, source, concept, NULL FROM tags"),
        ("image_id", "image_id, 4, key, value, NULL, NULL, NULL, NULL FROM metadata"),
    )
)
_FEW = 5_000  # images that are sorted by date quicker than all are walked through
_CHUNK = 500  # ids per statement; every SQLite allows 999 variables


@dataclass(frozen=True, slots=True)
class State:
    """What one statement tells of the catalog."""

    revision: int  # grows with every visible change; caches of older revisions are stale
    searchable: int | None  # documents that a search can find, as a writer counted them
    captioned: bool  # any caption has a vector
    arrays: Mapping[str, VectorFile]  # by name
    model: str | None  # as indexer.sqlite.manifest.Identity writes it


class SqliteCatalog:
    """Reads catalog.sqlite. Threads may share one object."""

    def __init__(self, path: Path, write: bool = False) -> None:
        self.path, self.folder = path, path.parent
        self.connection, self._write = connect(path, write), write
        self.lock = threading.RLock()  # one statement, snapshot or transaction at a time

    def images(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Records by id; ids that are unknown or have no file are left out."""
        paths: dict[str, list[str]] = defaultdict(list)
        for image_id, path in self._rows_by_id(
            "SELECT image_id, path FROM files WHERE image_id IN ({}) ORDER BY path", ids
        ):
            paths[image_id].append(path)
        rows = self._rows_by_id(
            "SELECT id, width, height, size_bytes, format, taken_at FROM images WHERE id IN ({})",
            ids,
        )
        return {row[0]: _record(row, paths[row[0]]) for row in rows if row[0] in paths}

    def captions(self, ids: Sequence[str]) -> Mapping[str, tuple[Caption, ...]]:
        """All captions of each image, those written by people first."""
        rows = self._rows_by_id(
            "SELECT image_id, text, language, source, confidence FROM captions "
            f"WHERE image_id IN ({{}}) ORDER BY source GLOB '{GENERATED}*', id",
            ids,
        )
        return self._grouped(ids, ((row[0], Caption(*row[1:])) for row in rows))

    def tags(self, ids: Sequence[str]) -> Mapping[str, tuple[Tag, ...]]:
        """All tags of each image, by falling confidence."""
        rows = self._rows_by_id(
            "SELECT image_id, label, language, confidence, source, concept FROM tags "
            "WHERE image_id IN ({}) ORDER BY confidence DESC, label, language, source",
            ids,
        )
        return self._grouped(ids, ((row[0], Tag(*row[1:])) for row in rows))

    def state(self) -> State:
        """What a search begins with."""
        meta: dict[str, str] = {}
        arrays: dict[str, VectorFile] = {}
        for kind, *values in self.rows(_STATE):
            if kind == "array":
                arrays[values[0]] = VectorFile(self.folder, *values)
            else:
                meta[values[0]] = values[1]
        searchable = meta.get(SEARCHABLE, "").split()
        revision = int(meta.get("revision", 0))
        return State(
            revision,
            int(searchable[1]) if searchable and int(searchable[0]) == revision else None,
            bool(meta["captioned"]),
            arrays,
            meta.get("model"),
        )

    def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Images with everything written about them; ids without a file are left out."""
        return self.page(ids)[0]

    def page(self, ids: Sequence[str]) -> tuple[Mapping[str, Document], Mapping[int, Caption]]:
        """`documents`, and their captions by the rows of their vectors; by one statement."""
        rows: dict[str, tuple[list[Any], ...]] = {one: ([], [], [], [], []) for one in ids}
        for image_id, kind, *values in self._rows_by_id(_DOCUMENTS, ids):
            rows[image_id][kind].append(values)
        documents: dict[str, Document] = {}
        by_slot: dict[int, Caption] = {}
        for image_id, (records, files, captions, tags, texts) in rows.items():
            captions.sort(key=lambda row: (row[2].startswith(GENERATED), row[5]))
            tags.sort(key=lambda row: (-row[2], row[0], row[1], row[3]))
            written = {Caption(*row[:4]): row[4] for row in captions}
            by_slot |= {row[4]: Caption(*row[:4]) for row in captions}
            if records and files:
                documents[image_id] = Document(
                    _record((image_id, *records[0]), sorted(path for path, *_ in files)),
                    tuple(written),
                    tuple(dict.fromkeys(Tag(*row[:5]) for row in tags)),
                    {key: value for key, value, *_ in sorted(texts)},
                )
        return documents, by_slot

    def metadata(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Texts of each image that are neither captions nor tags, by what they are."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        sql = "SELECT image_id, key, value FROM metadata WHERE image_id IN ({})"
        for image_id, key, value in self._rows_by_id(sql, ids):
            found[image_id][key] = value
        return found

    def select(self, filters: Filters) -> list[Any]:
        """(id,) of the images that pass filters and have a file."""
        conditions, values = self.where(filters)
        return self.rows(f"SELECT id FROM images i WHERE {conditions}", values)

    def where(self, filters: Filters) -> tuple[str, list[object]]:
        """A condition on images `i` and its values: they have a file and pass the filters."""
        return where(filters)

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[str, ...]:
        """Ids by the date the images were taken, latest first, undated last; ties by id."""
        conditions, values = self.where(filters)
        for condition, operands in self.few(filters, _FEW):
            conditions += f" AND {condition}"
            values += operands
        # NULL sorts as the least: undated images come last without saying so, by index.
        sql = (
            f"SELECT id FROM images i WHERE {conditions} "
            "ORDER BY taken_at DESC, id LIMIT ? OFFSET ?"
        )
        return tuple(row[0] for row in self.rows(sql, [*values, limit, offset]))

    def few(self, filters: Filters, limit: int) -> Iterator[tuple[str, list[object]]]:
        """Conditions that less than `limit` images pass, in the form that looks these up.

        Without them SQLite walks through all images.
        """
        for source, operands in sources(filters):
            sql = f"SELECT count(*) FROM (SELECT 1 {source} LIMIT {limit})"
            if self.rows(sql, operands)[0][0] < limit:
                yield f"i.id IN (SELECT image_id {source})", operands

    def array(self, name: str, table: str = "arrays") -> VectorFile:
        """The vector file called `name`, as the table `arrays` or `next_arrays` describes it."""
        sql = f"SELECT name, generation, dtype, width, rows FROM {table} WHERE name = ?"
        [row] = self.rows(sql, (name,))
        return VectorFile(self.folder, *row)

    def arrays(self) -> tuple[VectorFile, ...]:
        """All vector files, also those of a rebuild that is not complete."""
        sql = "SELECT name, generation, dtype, width, rows FROM {}"
        tables = ("arrays", "next_arrays")
        rows = [row for table in tables for row in self.rows(sql.format(table))]
        return tuple(VectorFile(self.folder, *row) for row in rows)

    def last_generation(self, name: str) -> int:
        """The highest generation of a vector file that the catalog names."""
        return max(array.generation for array in self.arrays() if array.name == name)

    def meta(self, key: str) -> str | None:
        """The value of `key` in the table `meta`, or None."""
        rows = self.rows("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def searchable_count(self) -> int:
        """How many images have a file and a vector; counted only if no writer stored it."""
        revision, _, stored = (self.meta(SEARCHABLE) or "").partition(" ")
        if stored and int(revision) == self.revision():
            return int(stored)
        present = "SELECT count(*) FROM (SELECT DISTINCT image_id FROM files)"
        pending = (
            "SELECT count(*) FROM images i WHERE slot IS NULL "
            "AND EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"
        )
        return int(self.rows(present)[0][0]) - int(self.rows(pending)[0][0])

    def revision(self) -> int:
        """A number that grows with every visible change; caches of older revisions are stale."""
        return int(self.meta("revision") or 0)

    def roots(self) -> tuple[Path, ...]:
        """The folders indexed so far, sorted."""
        return tuple(Path(row[0]) for row in self.rows("SELECT path FROM roots ORDER BY path"))

    def excludes(self) -> dict[Path, tuple[str, ...]]:
        """The folders indexed so far, with the globs that each leaves out."""
        rows = self.rows("SELECT path, exclude FROM roots ORDER BY path")
        return {Path(path): tuple(json.loads(globs)) for path, globs in rows}

    def mount_points(self) -> set[Path]:
        """Folders below roots that were mount points when their images were last seen."""
        return {Path(row[0]) for row in self.rows("SELECT path FROM mount_points")}

    def captions_files(self) -> dict[Path, FileState]:
        """The captions files read so far."""
        rows = self.rows("SELECT path, mtime_ns, size FROM captions_files ORDER BY path")
        return {Path(path): FileState(*state) for path, *state in rows}

    def ids(self) -> set[str]:
        """The ids of all images, also of those without a file."""
        return {row[0] for row in self.rows("SELECT id FROM images")}

    def missing(self) -> int:
        """How many images have no file."""
        sql = "SELECT count(*) FROM images WHERE missing_since IS NOT NULL"
        return int(self.rows(sql)[0][0])

    def image_paths(self) -> list[tuple[str, str]]:
        """(path, image id) of every file, sorted by path."""
        return self.rows("SELECT path, image_id FROM files ORDER BY path")

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """All rows of one statement. IndexProblem when the database is damaged."""
        try:
            with self.lock:
                return self.connection.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as problem:
            raise IndexProblem(f"{self.folder}: {problem}; is the index damaged?") from problem

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside use one state of the database, even if another process writes."""
        with self.lock:
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("COMMIT")

    def close(self) -> None:
        """Closes the connection."""
        close(self.connection, self.path, self._write)

    def _rows_by_id(self, sql: str, ids: Sequence[str]) -> Iterator[Any]:
        """The rows of a statement with `IN ({})`, which is filled with `ids`, a chunk at a time."""
        unique = list(dict.fromkeys(ids))
        for start in range(0, len(unique), _CHUNK):
            chunk = unique[start : start + _CHUNK]
            numbered = ", ".join(f"?{at}" for at in range(1, len(chunk) + 1))
            yield from self.rows(sql.format(numbered), chunk)

    def _grouped(self, ids: Sequence[str], pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
        """Each known id with its entries, equal ones once; () for an image without any."""
        groups: dict[str, dict[Any, None]] = defaultdict(dict)
        for image_id, entry in pairs:
            groups[image_id][entry] = None
        sql = "SELECT id FROM images WHERE id IN ({})"
        known = {row[0] for row in self._rows_by_id(sql, ids)}
        return {image_id: tuple(groups[image_id]) for image_id in ids if image_id in known}


def _record(row: Sequence[Any], paths: Sequence[str]) -> ImageRecord:
    taken_at = datetime.fromisoformat(row[5]) if row[5] else None
    image_id, width, height, size_bytes, kind, *_ = row
    return ImageRecord(image_id, tuple(paths), width, height, size_bytes, kind, taken_at)


def within(column: str, numbers: Sequence[int]) -> str:
    """A condition with integers written out: there may be more than SQLite has variables."""
    return f"{column} IN ({', '.join(map(str, numbers))})"


MAX_CHOICES = 500  # tags or folders in one list; the rarest values are left out
MIN_INTERVAL_S = 5.0  # between two counts while a writer runs
MAX_SHARE = 1 / 20  # of a run's time that may go into counting
_STORED = "facets"  # meta: "REVISION SECONDS"
_LIVE = "EXISTS (SELECT 1 FROM files WHERE image_id = {}.image_id)"
_LABELS = (
    "SELECT label, count(*) AS n FROM (SELECT DISTINCT label, image_id FROM tags t "
    f"WHERE {_LIVE.format('t')} AND concept = '') "
    f"GROUP BY label ORDER BY n DESC, label LIMIT {MAX_CHOICES}"
)
_USED = "SELECT DISTINCT concept FROM tags WHERE concept != ''"
# (concept, one that is as broad or broader) as a table, from JSON.
_CONCEPTS = (
    "WITH above(concept, broader) AS MATERIALIZED (SELECT json_extract(value, '$[0]'), "
    "json_extract(value, '$[1]') FROM json_each(?)) "
    "SELECT broader, count(DISTINCT t.image_id) AS n FROM above a JOIN tags t "
    f"ON t.concept = a.concept AND t.concept != '' WHERE {_LIVE.format('t')} "
    f"GROUP BY broader ORDER BY n DESC, broader LIMIT {MAX_CHOICES}"
)
_LANGUAGES = (
    "SELECT language, count(DISTINCT image_id) AS n FROM captions c "
    f"WHERE {_LIVE.format('c')} GROUP BY language ORDER BY n DESC, language"
)
_COUNT_WRITERS = (
    f"SELECT CASE WHEN source GLOB '{GENERATED}*' THEN 'models' ELSE 'people' END AS who, "
    f"count(DISTINCT image_id) AS n FROM captions c WHERE {_LIVE.format('c')} "
    "GROUP BY who ORDER BY n DESC, who"
)
_DATE = (
    "SELECT taken_at FROM images i WHERE taken_at IS NOT NULL AND "
    "EXISTS (SELECT 1 FROM files WHERE image_id = i.id) ORDER BY taken_at {} LIMIT 1"
)
_FOLDER = "rtrim(path, replace(path, ?1, ''))"  # up to the last separator, which stays


@dataclass(frozen=True, slots=True)
class Counted:
    """Facets, the revision of the catalog they belong to, and when they were counted."""

    facets: Facets
    revision: int
    at: float  # seconds since 1970


class StoredFacets:
    """The counts that a writer stores for readers."""

    def __init__(self, writer: CatalogWriter) -> None:
        self._writer, self._catalog = writer, writer.catalog
        self._due = time.monotonic() + MIN_INTERVAL_S

    def refresh_now_and_then(self) -> None:
        """Counts again if the last time is long enough ago for what it took."""
        if time.monotonic() >= self._due:
            self.refresh()

    def refresh(self) -> None:
        """Counts again if anything has changed."""
        started, revision = time.monotonic(), self._catalog.revision()
        if _state(self._catalog)[0] != revision:
            counted = facets(self._catalog)
            with self._writer.transaction(visible=False):
                self._catalog.connection.execute("DELETE FROM facets")
                self._catalog.connection.executemany(
                    "INSERT INTO facets VALUES (?, ?, ?)", _rows(counted)
                )
                self._writer.set_meta(_STORED, f"{revision} {time.time():.0f}")
        now = time.monotonic()
        self._due = now + max(MIN_INTERVAL_S, (now - started) / MAX_SHARE)


def stored(catalog: SqliteCatalog) -> Counted | None:
    """What a writer counted last; None in a catalog that has nothing stored."""
    revision, at = _state(catalog)
    if revision < 0:
        return None
    found: dict[str, list[Facet]] = {}
    for kind, value, count in catalog.rows("SELECT kind, value, count FROM facets"):
        found.setdefault(kind, []).append(Facet(value, count))

    def by_count(kind: str) -> tuple[Facet, ...]:
        return tuple(sorted(found.get(kind, ()), key=lambda one: (-one.images, one.value)))

    def of_tags(kind: str) -> dict[str, int]:
        return {one.value: one.images for one in found.get(kind, ())}

    days = {kind: date.fromisoformat(found[kind][0].value) for kind in _DAYS if kind in found}
    return Counted(
        Facets(
            tags=tag_facets(of_tags("tag"), of_tags("concept"), concepts),
            folders=tuple(sorted(found.get("folder", ()), key=lambda one: one.value)),
            caption_languages=by_count("language"),
            written_by=by_count("author"),
            earliest=days.get("earliest"),
            latest=days.get("latest"),
        ),
        revision,
        at,
    )


def facets(catalog: SqliteCatalog) -> Facets:
    """The facets of the whole collection, counted now."""
    return Facets(
        tags=_tags(catalog),
        folders=_folders(catalog),
        caption_languages=_counted(catalog, _LANGUAGES),
        written_by=_counted(catalog, _COUNT_WRITERS),
        earliest=_day(catalog.rows(_DATE.format("ASC"))),
        latest=_day(catalog.rows(_DATE.format("DESC"))),
    )


_DAYS = ("earliest", "latest")


def _state(catalog: SqliteCatalog) -> tuple[int, float]:
    """(revision, seconds) of the stored counts; a revision of -1 if there are none."""
    text = catalog.meta(_STORED)
    revision, _, seconds = (text or "-1 0").partition(" ")
    return int(revision), float(seconds)


def _rows(counted: Facets) -> Iterator[tuple[str, str, int]]:
    for one in counted.tags:
        yield (
            ("concept", one.concept, one.images) if one.concept else ("tag", one.value, one.images)
        )
    yield from (("folder", one.value, one.images) for one in counted.folders)
    yield from (("language", one.value, one.images) for one in counted.caption_languages)
    yield from (("author", one.value, one.images) for one in counted.written_by)
    for kind, day in zip(_DAYS, (counted.earliest, counted.latest), strict=True):
        if day is not None:
            yield kind, day.isoformat(), 0


def _counted(catalog: SqliteCatalog, sql: str) -> tuple[Facet, ...]:
    return tuple(Facet(*row) for row in catalog.rows(sql))


def _tags(catalog: SqliteCatalog) -> tuple[Facet, ...]:
    """By concept where tags have one, by label where not."""
    labels = dict(catalog.rows(_LABELS))
    used = [row[0] for row in catalog.rows(_USED)]
    known = [one for one in used if one in concepts.all_concepts()]
    above = [(one, broader) for one in known for broader in sorted(concepts.broader(one))]
    counts = dict(catalog.rows(_CONCEPTS, (json.dumps(above),))) if above else {}
    return tag_facets(labels, counts, concepts)[:MAX_CHOICES]


def _folders(catalog: SqliteCatalog) -> tuple[Facet, ...]:
    """Every folder below the roots (and the roots) that contains images, sorted by path.

    Files are counted in their own folder first and these counts added up; an image that has
    several files is then counted once in each folder.
    """
    roots = {str(root) for root in catalog.roots()}
    counts: Counter[str] = Counter()
    for folder, count in catalog.rows(
        f"SELECT {_FOLDER}, count(*) FROM files GROUP BY 1", [os.sep]
    ):
        counts.update(dict.fromkeys(_parents(folder, roots), count))
    copies: dict[str, Counter[str]] = {}
    for image_id, folder in catalog.rows(
        f"SELECT image_id, {_FOLDER} FROM files WHERE image_id IN "
        "(SELECT image_id FROM files GROUP BY 1 HAVING count(*) > 1)",
        [os.sep],
    ):
        copies.setdefault(image_id, Counter()).update(_parents(folder, roots))
    for folders in copies.values():
        counts.subtract({folder: count - 1 for folder, count in folders.items()})
    return tuple(Facet(*item) for item in sorted(_most_common(counts)))


def _parents(folder: str, roots: set[str]) -> Iterator[str]:
    """The folders from one, which ends with a separator, up to its root, the root included."""
    folder = folder.rstrip(os.sep) or os.sep
    while folder not in roots:
        yield folder
        parent = os.path.dirname(folder)  # noqa: PTH120 - many: strings are ten times faster
        if parent == folder:
            return
        folder = parent
    yield folder


def _most_common(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_CHOICES]


def _day(rows: list[Any]) -> date | None:
    return datetime.fromisoformat(rows[0][0]).date() if rows else None
