"""The values a collection can be filtered by: tags, folders, dates and captions, with counts.

Counting takes time that grows with the collection, so the writer stores the counts now and then
and at the end of a run, and readers take them from there.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from capsearch.encoders import concepts
from capsearch.engine.records import GENERATED, Facet, Facets
from capsearch.engine.tag_facets import tag_facets
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.schema import FACETS_SCHEMA

if TYPE_CHECKING:
    from capsearch.indexer.embedded.catalog_writer import CatalogWriter

MAX_CHOICES = 500  # tags or folders in one list; the rarest values are left out
MIN_INTERVAL_S = 5.0  # between two counts while a writer runs
MAX_SHARE = 1 / 20  # of a run's time that may go into counting
_STORED = "facets"  # meta: "REVISION SECONDS"
_LIVE = "EXISTS (SELECT 1 FROM files WHERE image_id = {}.image_id)"
_LABELS = (
    "SELECT label, count(*) AS n FROM (SELECT DISTINCT label, image_id FROM tags t "
    f"WHERE {_LIVE.format('t')}{{}}) GROUP BY label ORDER BY n DESC, label LIMIT {MAX_CHOICES}"
)
_WITHOUT_CONCEPT = " AND concept = ''"
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
_WRITTEN_BY = (
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
        written_by=_counted(catalog, _WRITTEN_BY),
        earliest=_day(catalog.rows(_DATE.format("ASC"))),
        latest=_day(catalog.rows(_DATE.format("DESC"))),
    )


_DAYS = ("earliest", "latest")


def _state(catalog: SqliteCatalog) -> tuple[int, float]:
    """(revision, seconds) of the stored counts; a revision of -1 if there are none."""
    text = catalog.meta(_STORED) if catalog.schema() >= FACETS_SCHEMA else None
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
    if not catalog.is_enriched():
        return _counted(catalog, _LABELS.format(""))
    labels = dict(catalog.rows(_LABELS.format(_WITHOUT_CONCEPT)))
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
