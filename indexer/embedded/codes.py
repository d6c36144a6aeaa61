"""Compressed codes kept beside large vector files, so that a search need not compute them again.

`NAME-G.codes` (embedded.pq_file) belongs to generation G of the vector file NAME. It holds codes of
the first rows; the others are compared one by one until they are too many. Then their codes join
those of the file, and nothing else is computed again.
"""

from __future__ import annotations

from capsearch.indexer.embedded import nearest, pq_file
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.disk import writing
from capsearch.indexer.embedded.nearest import CodeSearch, Nearest, coded
from capsearch.indexer.embedded.pq import Codes

_UNCODED = 1 / 4  # of EXACT_ROWS: so many rows may lack a code


def open_search(array: VectorFile, before: Nearest | None = None) -> Nearest:
    """The search over a vector file, by cached codes where there are any.

    `before` is a search over the same file when it had fewer rows, and no longer in use.
    """
    known = before.codes if isinstance(before, CodeSearch) else None
    return nearest.build(array.view(), lambda: _codes(array, known))


def refresh(array: VectorFile) -> None:
    """Writes the codes of a large vector file unless the cached ones still serve."""
    if not nearest.needs_codes(array.view()):
        array.codes_path.unlink(missing_ok=True)
        return
    cached = _load(array)
    if cached is None or _lacking(array, cached):
        with writing(array.codes_path):
            pq_file.save(_complete(array), array.codes_path)


def _codes(array: VectorFile, known: Codes | None) -> Codes:
    """Codes of all rows but a few."""
    codes = known or _load(array)
    if codes is None or not _lacking(array, codes):
        return codes or _complete(array)
    if not codes.writable:
        return _complete(array)
    codes.add(array.view())
    return codes


def _complete(array: VectorFile) -> Codes:
    """Codes of all rows, in memory: those in the cache and those of later rows."""
    codes = _load(array, writable=True)
    if codes is None or codes.outgrown(array.rows):
        return coded(array.view())
    codes.add(array.view())
    return codes


def _lacking(array: VectorFile, codes: Codes) -> bool:
    """Too many rows have no code."""
    return array.rows - codes.rows > nearest.EXACT_ROWS[array.view().dtype] * _UNCODED


def _load(array: VectorFile, writable: bool = False) -> Codes | None:
    """The cached codes of the first rows of a vector file, or None."""
    codes = pq_file.open_codes(array.codes_path, array.width, writable)
    return codes if codes is not None and codes.rows <= array.rows else None
