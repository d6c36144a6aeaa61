"""What a collection knows besides images: folders, captions files, skipped files, options.

One small document each, in the index NAME-state: it belongs to no model, so it outlives versions,
and writers at the same time do not overwrite each other's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from capsearch.indexer.elastic import bulk
from capsearch.indexer.elastic.client import Address, readable_errors
from capsearch.indexer.elastic.documents import folders

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

Kind = Literal["root", "mount point", "captions file", "skipped", "option"]
_MAPPING: Mapping[str, Any] = {
    "dynamic": "strict",
    "properties": {
        "kind": {"type": "keyword"},
        "name": {"type": "keyword", "ignore_above": 8000},  # a path, or that of an option
        "folders": {"type": "keyword", "ignore_above": 8000},
        "facts": {"type": "object", "enabled": False},
    },
}
_PAGE = 1000


class State:
    """The documents of NAME-state; there may be none."""

    def __init__(self, client: Elasticsearch, address: Address) -> None:
        self._client, self._address = client, address
        self.index = f"{address.name}-state"

    def create(self) -> None:
        """Makes the index unless it is there."""
        from elasticsearch import BadRequestError

        with readable_errors(self._address):
            if self._client.indices.exists(index=self.index):
                return
            try:
                self._client.indices.create(
                    index=self.index,
                    settings={"number_of_shards": 1, "auto_expand_replicas": "0-1"},
                    mappings=_MAPPING,
                )
            except BadRequestError as problem:  # another writer was faster
                if "resource_already_exists" not in str(problem):
                    raise

    def drop(self) -> None:
        """Deletes all of it."""
        with readable_errors(self._address):
            self._client.indices.delete(index=self.index, ignore_unavailable=True)

    def roots(self) -> dict[Path, tuple[str, ...]]:
        """The folders indexed so far, sorted, with the globs that each leaves out."""
        found = {Path(name): tuple(facts["exclude"]) for name, facts in self.all("root").items()}
        outer = {root: globs for root, globs in found.items() if not _inside(root, list(found))}
        return dict(sorted(outer.items()))

    def add_roots(self, excludes: Mapping[Path, Sequence[str]]) -> None:
        """Adds roots with the globs they leave out; those inside another root are not kept."""
        known = [*map(Path, self.all("root")), *excludes]
        outer = {root: globs for root, globs in excludes.items() if not _inside(root, known)}
        self.put("root", {str(root): {"exclude": list(globs)} for root, globs in outer.items()})
        self.delete("root", [str(root) for root in known if _inside(root, known)])

    def all(self, kind: Kind, below: Sequence[Path] | None = None) -> dict[str, dict[str, Any]]:
        """The facts of one kind by name; with `below`, of those paths and what is below them."""
        clauses: list[dict[str, Any]] = [{"term": {"kind": kind}}]
        if below is not None:
            names = [str(path) for path in below]
            inside = [{"terms": {"folders": names}}, {"terms": {"name": names}}]
            clauses.append({"bool": {"should": inside}})
        return dict(self._scan({"bool": {"filter": clauses}}))

    def put(self, kind: Kind, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds or replaces facts by name."""
        self._send(
            {
                "_op_type": "index",
                "_id": _id(kind, name),
                "kind": kind,
                "name": name,
                "folders": [] if kind == "option" else folders([name]),
                "facts": one,
            }
            for name, one in facts.items()
        )

    def delete(self, kind: Kind, names: Sequence[str]) -> None:
        """Removes facts; unknown names are ignored."""
        self._send({"_op_type": "delete", "_id": _id(kind, name)} for name in names)

    def _send(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for _ in bulk.send(self._client, self._address, self.index, actions):
            pass

    def _scan(self, query: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        after: dict[str, Any] = {}
        with readable_errors(self._address):
            self._client.indices.refresh(index=self.index, ignore_unavailable=True)
            while True:
                found = self._client.search(
                    index=self.index, query=query, sort=["name"], size=_PAGE,
                    ignore_unavailable=True, **after,
                )["hits"]["hits"]  # fmt: skip
                yield from ((one["_source"]["name"], one["_source"]["facts"]) for one in found)
                if len(found) < _PAGE:
                    return
                after = {"search_after": found[-1]["sort"]}


def _inside(root: Path, others: Sequence[Path]) -> bool:
    return any(other in root.parents for other in others)


def _id(kind: Kind, name: str) -> str:
    return hashlib.blake2b(f"{kind}\0{name}".encode(), digest_size=16).hexdigest()
