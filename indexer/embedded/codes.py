"""Compressed codes kept beside large vector files, so that a search need not compute them again.

`NAME-G.codes` belongs to generation G of the vector file NAME. FAISS files made by somebody else
can do harm (faiss #5400), so a file is opened only if its digest carries this machine's signature:
a keyed hash whose key lies outside the index. Anything else is computed anew, in memory.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from platformdirs import user_data_path

from capsearch.encoders.atomic import replacing
from capsearch.indexer.embedded import nearest
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.nearest import CodeSearch, Nearest

_STALE_FRACTION = 10  # codes that lack more than a tenth of the rows are written again
_SIGNATURE_BYTES = 32


def open_search(array: VectorFile) -> Nearest:
    """The search over a vector file, by cached codes where there are any."""
    rows = array.view()
    if nearest.needs_codes(rows):
        index = _load(path_of(array))
        if index is not None and index.d == array.width and index.ntotal <= array.rows:
            return CodeSearch(rows, index)
    return nearest.build(rows)


def refresh(array: VectorFile) -> None:
    """Writes the codes of a large vector file unless the cached ones still serve."""
    rows, path = array.view(), path_of(array)
    if not nearest.needs_codes(rows):
        path.unlink(missing_ok=True)
        return
    index = _load(path)
    if index is not None and (array.rows - index.ntotal) * _STALE_FRACTION < array.rows:
        return
    search = CodeSearch(rows, index)
    import faiss

    data = faiss.serialize_index(search.index).tobytes()
    with replacing(path) as temporary:
        temporary.write_bytes(_signature(data) + data)


def path_of(array: VectorFile) -> Path:
    """The codes of a vector file."""
    return array.folder / f"{array.name}-{array.generation}.codes"


def _load(path: Path):  # type: ignore[no-untyped-def]  # FAISS has no types for indexes
    try:
        content = path.read_bytes()
    except OSError:
        return None
    signature, data = content[:_SIGNATURE_BYTES], content[_SIGNATURE_BYTES:]
    if not secrets.compare_digest(signature, _signature(data)):
        return None
    import faiss
    import numpy as np

    return faiss.deserialize_index(np.frombuffer(data, np.uint8))


def _signature(data: bytes) -> bytes:
    return hashlib.blake2b(data, key=_key(), digest_size=_SIGNATURE_BYTES).digest()


def _key() -> bytes:
    """This user's key, made when first needed; without one nothing is trusted."""
    path = user_data_path("capsearch") / "cache.key"
    with suppress(OSError):
        return path.read_bytes()
    key = secrets.token_bytes(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return key  # of this process only
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    return key
