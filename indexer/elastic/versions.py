"""Versions of a collection: indexes NAME-v1, NAME-v2, ... of which the alias NAME is the current.

Searches ask the alias. A load with other models goes into the next version and is published when it
is whole, so that searches see the old collection or the new one and nothing in between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capsearch.engine.errors import IndexProblem, ModelMismatch
from capsearch.indexer.elastic import mapping
from capsearch.indexer.elastic.client import Address, missing, readable_errors
from capsearch.indexer.elastic.state import State
from capsearch.indexer.embedded.manifest import Identity

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch


def current(client: Elasticsearch, address: Address) -> str | None:
    """The index that the alias names, or None."""
    with readable_errors(address):
        if not client.indices.exists(index=address.name):
            return None
        if not client.indices.exists_alias(name=address.name):
            raise IndexProblem(
                f"{address} is an index that capsearch did not make; choose another name"
            )
        return str(next(iter(client.indices.get_alias(name=address.name).body)))


def about(client: Elasticsearch, address: Address, index: str | None = None) -> Mapping[str, Any]:
    """What an index says about itself (mapping.meta); IndexMissing where there is none."""
    index = index or current(client, address)
    if index is None:
        raise missing(address)
    with readable_errors(address):
        found = client.indices.get_mapping(index=index)[index]["mappings"]
    stored: Mapping[str, Any] | None = found.get("_meta", {}).get(mapping.META)
    if stored is None:
        raise IndexProblem(f"{index} was not made by capsearch; choose another name")
    return stored


def require_same_model(
    client: Elasticsearch, address: Address, index: str, identity: Identity
) -> None:
    """ModelMismatch when an index was made with another model."""
    made = mapping.identity_of(about(client, address, index))
    if not made.same_vectors(identity):
        raise ModelMismatch(
            f"{address} was made with {made}, this is {identity}; --rebuild makes its next "
            "version and replaces it when that is whole"
        )


def prepare(
    client: Elasticsearch,
    address: Address,
    identity: Identity,
    *,
    rebuild: bool = False,
    shards: int = 1,
    replicas: int = 1,
) -> str:
    """The index to write to: the current one, one that a killed load began, or a new one.

    With `rebuild` never the current one; ModelMismatch without it when another model made that.
    """
    published = current(client, address)
    if published is not None and not rebuild:
        require_same_model(client, address, published, identity)
        _upgrade(client, address, published)
        return published
    known = _versions(client, address)
    for index in known:
        made = mapping.identity_of(about(client, address, index))
        if index != published and made.same_vectors(identity):
            _upgrade(client, address, index)
            return index
    number = max((_number(one) for one in known), default=0) + 1
    index = f"{address.name}-v{number}"
    _create(client, address, index, identity, shards, replicas)
    return index


def _create(
    client: Elasticsearch, address: Address, index: str, identity: Identity, shards: int,
    replicas: int,
) -> None:  # fmt: skip
    """Unless another writer was faster."""
    from elasticsearch import BadRequestError

    with readable_errors(address):
        try:
            client.indices.create(
                index=index,
                settings=mapping.settings(shards, replicas),
                mappings=mapping.mapping(identity),
                aliases={mapping.write_alias(index): {}},
            )
        except BadRequestError as problem:
            if "resource_already_exists" not in str(problem):
                raise
    require_same_model(client, address, index, identity)


def _upgrade(client: Elasticsearch, address: Address, index: str) -> None:
    """Adds the fields and the alias that an index of an older schema lacks.

    Its documents get values of the new fields when they are next written; `copy` sends them again.
    """
    stored = about(client, address, index)
    if stored["schema"] < mapping.SCHEMA:
        wanted = mapping.mapping(mapping.identity_of(stored))["properties"]
        meta = {mapping.META: {**stored, "schema": mapping.SCHEMA}}
        with readable_errors(address):
            client.indices.put_alias(index=index, name=mapping.write_alias(index))
            client.indices.put_mapping(index=index, properties=wanted, meta=meta)


def publish(client: Elasticsearch, address: Address, index: str) -> None:
    """Makes `index` the current version in one step, and deletes the others."""
    with readable_errors(address):
        known = _versions(client, address)
        actions = [
            {"remove": {"index": one, "alias": address.name, "must_exist": False}}
            for one in known
            if one != index
        ]
        added = {"add": {"index": index, "alias": address.name}}
        client.indices.update_aliases(actions=[*actions, added])
        for one in known:
            if one != index:
                client.indices.delete(index=one)


def drop(client: Elasticsearch, address: Address) -> None:
    """Deletes a collection with all its versions."""
    with readable_errors(address):
        for index in _versions(client, address):
            client.indices.delete(index=index)
    State(client, address).drop()


def _versions(client: Elasticsearch, address: Address) -> list[str]:
    with readable_errors(address):
        found = client.indices.get(index=f"{address.name}-v*", features="aliases").body
    return sorted((one for one in found if _is_version(one, address)), key=_number)


def _is_version(index: str, address: Address) -> bool:
    return re.fullmatch(re.escape(address.name) + r"-v\d+", index) is not None


def _number(index: str) -> int:
    return int(index.rpartition("-v")[2])
