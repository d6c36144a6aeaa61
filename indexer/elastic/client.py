"""Connections to a cluster, and its errors as one line each with what to do.

A collection's address is https://HOST:PORT/NAME. Credentials come from the environment, are sent to
that host only, and are stored nowhere:

    CAPSEARCH_ES_API_KEY                           an API key, or
    CAPSEARCH_ES_USER, CAPSEARCH_ES_PASSWORD       a user of the cluster
    CAPSEARCH_ES_CA                                the certificate authority, if it is your own
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from capsearch.engine.errors import IndexMissing, IndexProblem, MissingExtra

if TYPE_CHECKING:
    from elasticsearch import ApiError, Elasticsearch

API_KEY, USER, PASSWORD, CA = (
    f"CAPSEARCH_ES_{name}" for name in ("API_KEY", "USER", "PASSWORD", "CA")
)
TIMEOUT_S = 60
RETRIES = 5
BUSY = (429, 502, 503, 504)
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,200}")  # what Elasticsearch allows, and no surprises
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a collection is: a cluster, and its name there."""

    cluster: str  # https://host:9200
    name: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """IndexProblem for anything but https://HOST:PORT/NAME."""
        parts = urlsplit(url)
        name = parts.path.strip("/")
        if parts.username or parts.password:
            raise IndexProblem(
                f"an address holds no password, or it ends up in logs: set ${USER} and ${PASSWORD}"
            )
        if parts.scheme not in ("https", "http") or not parts.hostname or not name:
            raise IndexProblem(f"{url} is no address of a collection: https://HOST:9200/NAME is")
        if not _NAME.fullmatch(name):
            raise IndexProblem(f"{name!r} cannot name a collection: use a-z, 0-9, -, _ and .")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise IndexProblem(f"{url} would send everything in the clear: use https://")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(f"{parts.scheme}://{host}:{_port(url)}", name)

    def __str__(self) -> str:
        return f"{self.cluster}/{self.name}"


def connect(address: Address, environment: Mapping[str, str] = os.environ) -> Elasticsearch:
    """A client with the environment's credentials; nothing is sent yet."""
    try:
        from elasticsearch import Elasticsearch
    except ImportError as error:
        raise MissingExtra("a collection in Elasticsearch", "elastic") from error
    return Elasticsearch(
        address.cluster,
        request_timeout=TIMEOUT_S,
        max_retries=RETRIES,
        retry_on_status=BUSY,
        retry_on_timeout=True,
        **_credentials(environment),
        **_authority(address, environment),
    )


@contextmanager
def readable_errors(address: Address) -> Iterator[None]:
    """Whatever the client raises inside becomes an IndexProblem of one line."""
    import elasticsearch

    try:
        yield
    except elasticsearch.UnsupportedProductError as error:
        raise IndexProblem(f"{address.cluster} is no Elasticsearch; check host and port") from error
    except elasticsearch.ApiError as error:
        raise _answered(address, error) from error
    except elasticsearch.SSLError as error:
        raise IndexProblem(
            f"{address.cluster} has a certificate that nobody here vouches for; name the file of "
            f"its certificate authority in ${CA}"
        ) from error
    except elasticsearch.ConnectionTimeout as error:
        raise IndexProblem(
            f"{address.cluster} did not answer within {TIMEOUT_S} s; is the cluster overloaded?"
        ) from error
    except elasticsearch.ConnectionError as error:
        raise IndexProblem(
            f"nothing answers at {address.cluster}; check host and port, and that it is running"
        ) from error
    except elasticsearch.TransportError as error:
        raise IndexProblem(f"{address.cluster} is no Elasticsearch; check host and port") from error


def reason(error: Any) -> str:
    """The kind of an error as the server names it, with its explanation."""
    body = error if isinstance(error, dict) else getattr(error, "body", None)
    cause = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(cause, dict):
        return str(cause or error)[:200]
    cause = cause.get("caused_by") or next(iter(cause.get("root_cause") or ()), cause)
    return f"{cause.get('type')}: {cause.get('reason')}"[:200]


def _answered(address: Address, error: ApiError) -> IndexProblem:
    """An answer that is an error: by its kind, then by its status."""
    said, status = f"{error.body} {error.message}", error.meta.status
    if "cluster_block_exception" in said:
        return IndexProblem(
            f"{address} is read-only; free disk space on the cluster or remove the block "
            f"(index.blocks.*): {reason(error)}"
        )
    if status == 401:
        return IndexProblem(
            f"{address.cluster} refuses these credentials; check ${API_KEY}, or ${USER} and "
            f"${PASSWORD}"
        )
    if status == 403:
        return IndexProblem(f"{address}: this user may not do that; {reason(error)}")
    if status == 404:
        return missing(address)
    if status in (502, 503, 504) or "no_shard_available" in said:
        return IndexProblem(
            f"{address}: parts of it are not available (is the cluster red?); see "
            f"_cluster/health, and try again when its nodes are back"
        )
    if status == 429:
        return IndexProblem(f"{address.cluster} has too much to do; try again later")
    return IndexProblem(f"{address}: {reason(error)}")


def missing(address: Address) -> IndexMissing:
    """The error of an address without a collection."""
    return IndexMissing(
        f"no collection at {address}; make one with `capsearch copy INDEX_FOLDER {address}`"
    )


def _port(url: str) -> int:
    try:
        return urlsplit(url).port or 9200
    except ValueError:
        raise IndexProblem(f"{url} has no valid port") from None


def _credentials(environment: Mapping[str, str]) -> dict[str, Any]:
    if key := environment.get(API_KEY):
        return {"api_key": key}
    user, password = environment.get(USER), environment.get(PASSWORD)
    if bool(user) != bool(password):
        raise IndexProblem(f"set both ${USER} and ${PASSWORD}, or ${API_KEY}")
    return {"basic_auth": (user, password)} if user else {}


def _authority(address: Address, environment: Mapping[str, str]) -> dict[str, Any]:
    file = environment.get(CA)
    if not file or not address.cluster.startswith("https"):
        return {}
    if not Path(file).is_file():
        raise IndexProblem(f"${CA} names {file}, which is no file")
    return {"ca_certs": file}
