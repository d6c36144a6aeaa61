"""Compressed codes kept beside large vector files, so that a search need not compute them again.

`NAME-G.codes` belongs to generation G of the vector file NAME. FAISS files made by somebody else
can do harm (faiss #5400), so a file is opened only if its digest carries this machine's signature:
a keyed hash whose key lies outside the index. Anything else is computed anew, in memory.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from typing import Any

from platformdirs import user_data_path

from capsearch.encoders.atomic import replacing
from capsearch.indexer.embedded import nearest
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.disk import writing
from capsearch.indexer.embedded.nearest import CodeSearch, Nearest

_STALE_FRACTION = 10  # codes that lack more than a tenth of the rows are written again
_SIGNATURE_BYTES = _KEY_BYTES = 32


def open_search(array: VectorFile, before: Nearest | None = None) -> Nearest:
    """The search over a vector file, by cached codes where there are any.

    `before` is a search over the same file when it had fewer rows, and no longer in use.
    """
    if isinstance(before, CodeSearch):
        return CodeSearch(array.view(), before.index)
    return nearest.build(array.view(), lambda: _load(array))


def refresh(array: VectorFile) -> None:
    """Writes the codes of a large vector file unless the cached ones still serve."""
    rows, path = array.view(), array.codes_path
    if not nearest.needs_codes(rows):
        path.unlink(missing_ok=True)
        return
    index = _load(array)
    if index is not None and (array.rows - index.ntotal) * _STALE_FRACTION < array.rows:
        return
    search = CodeSearch(rows, index)
    import faiss

    data = faiss.serialize_index(search.index).tobytes()
    with writing(path), replacing(path) as temporary:
        temporary.write_bytes(_signature(data) + data)


def _load(array: VectorFile) -> Any:
    """The cached FAISS index of the first rows of a vector file, or None."""
    try:
        content = memoryview(array.codes_path.read_bytes())
    except OSError:
        return None
    signature, data = content[:_SIGNATURE_BYTES], content[_SIGNATURE_BYTES:]
    if not secrets.compare_digest(signature, _signature(data)):
        return None
    import faiss
    import numpy as np

    index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    return index if index.d == array.width and index.ntotal <= array.rows else None


def _signature(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, key=_key(), digest_size=_SIGNATURE_BYTES).digest()


def _key() -> bytes:
    """This user's key, made when first needed; if it cannot be kept, nothing is trusted."""
    path = user_data_path("capsearch") / "cache.key"
    with suppress(OSError):
        key = path.read_bytes()
        if len(key) == _KEY_BYTES:  # an empty key would sign whatever anybody made
            return key
    key = secrets.token_bytes(_KEY_BYTES)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.touch(0o600)
            temporary.write_bytes(key)
    return key
