"""Connections to a cluster, and its errors as one line each with what to do.

A collection's address is https://HOST:PORT/NAME, or https://HOST:PORT,HOST:PORT/NAME for nodes that
stand in for each other. Credentials come from the environment or the keyring, are sent to these
hosts only, and are stored nowhere:

    CAPSEARCH_ES_API_KEY                           an API key, or
    CAPSEARCH_ES_USER, CAPSEARCH_ES_PASSWORD       a user of the cluster
    CAPSEARCH_ES_CA                                the certificate authority, if it is your own

Bulks of documents: streamed, one at a time, sent again while the cluster is busy.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
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
RETRIES = 5  # on other nodes, at once, where one does not answer
BUSY = (429, 502, 503, 504)
BACKOFF_S: tuple[float, ...] = (0.5, 1, 2, 4, 8)  # before a busy cluster is asked again
KEYRING_API_KEY = "api_key"  # user name in the keyring, under the cluster's address
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,200}")  # what Elasticsearch allows, and no surprises
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a collection is: a cluster, and its name there."""

    cluster: str  # https://host:9200, or https://host:9200,host:9200
    name: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """IndexProblem for anything but https://HOST:PORT/NAME, several hosts with commas."""
        scheme, _, rest = url.partition("://")
        hosts, _, name = rest.rstrip("/").partition("/")
        if "@" in hosts:
            raise IndexProblem(
                f"an address holds no password, or it ends up in logs: set ${USER} and ${PASSWORD}"
            )
        if scheme not in ("https", "http") or not all(hosts.split(",")) or not name:
            raise IndexProblem(f"{url} is no address of a collection: https://HOST:9200/NAME is")
        if not _NAME.fullmatch(name):
            raise IndexProblem(f"{name!r} cannot name a collection: use a-z, 0-9, -, _ and .")
        nodes = [_node(url, scheme, host) for host in hosts.split(",")]
        return cls(f"{scheme}://{','.join(nodes)}", name)

    @property
    def nodes(self) -> list[str]:
        """The address of each node."""
        scheme, _, hosts = self.cluster.partition("://")
        return [f"{scheme}://{host}" for host in hosts.split(",")]

    def __str__(self) -> str:
        return f"{self.cluster}/{self.name}"


def connect(address: Address, environment: Mapping[str, str] = os.environ) -> Elasticsearch:
    """A client with the environment's or the keyring's credentials; nothing is sent yet."""
    try:
        from elastic_transport import Transport, TransportApiResponse
        from elasticsearch import Elasticsearch
    except ImportError as error:
        raise MissingExtra("a collection in Elasticsearch", "elastic") from error

    class PatientTransport(Transport):
        """Asks a busy cluster again, each time after a longer pause."""

        def perform_request(self, *args: Any, **options: Any) -> TransportApiResponse:
            for pause_s in BACKOFF_S:
                response = super().perform_request(*args, **options)
                if response.meta.status not in BUSY:
                    return response
                time.sleep(pause_s)
            return super().perform_request(*args, **options)

    return Elasticsearch(
        address.nodes,
        transport_class=PatientTransport,
        request_timeout=TIMEOUT_S,
        max_retries=RETRIES,
        retry_on_status=(),
        retry_on_timeout=True,
        **_credentials(address, environment),
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
            f"${PASSWORD}, or what `keyring get {address.cluster} USER` says"
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
        f"no collection at {address}; make one with `capsearch index FOLDER --backend {address}`"
    )


def _node(url: str, scheme: str, host: str) -> str:
    """HOST:PORT; IndexProblem for what is none, or would be asked in the clear."""
    parts = urlsplit(f"{scheme}://{host}")
    try:
        port = parts.port or 9200
    except ValueError:
        raise IndexProblem(f"{url} has no valid port") from None
    name = parts.hostname or ""
    if scheme == "http" and name not in _LOOPBACK:
        raise IndexProblem(f"{url} would send everything in the clear: use https://")
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _credentials(address: Address, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the environment lacks is looked up in the keyring, if that is installed."""
    user, password = environment.get(USER), environment.get(PASSWORD)
    if password and not user:
        raise IndexProblem(f"set both ${USER} and ${PASSWORD}, or ${API_KEY}")
    if key := environment.get(API_KEY):
        return {"api_key": key}
    if user:
        password = password or _from_keyring(address, user)
        if not password:
            raise IndexProblem(
                f"set both ${USER} and ${PASSWORD}, or ${API_KEY}; or store the password with "
                f"`keyring set {address.cluster} {user}`"
            )
        return {"basic_auth": (user, password)}
    key = _from_keyring(address, KEYRING_API_KEY)
    return {"api_key": key} if key else {}


def _from_keyring(address: Address, user: str) -> str | None:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        found: str | None = keyring.get_password(address.cluster, user)
    except KeyringError:  # locked, or none on this machine
        return None
    return found


def _authority(address: Address, environment: Mapping[str, str]) -> dict[str, Any]:
    file = environment.get(CA)
    if not file or not address.cluster.startswith("https"):
        return {}
    if not Path(file).is_file():
        raise IndexProblem(f"${CA} names {file}, which is no file")
    return {"ca_certs": file}


DOCUMENTS_A_BULK = 250
BYTES_A_BULK = 10_000_000
BULK_RETRIES = 8  # of documents that a busy cluster refused, after 1, 2, 4, ... seconds
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
_CONFLICT, _NOT_FOUND = 409, 404


def send(
    client: Elasticsearch,
    address: Address,
    index: str,
    actions: Iterable[Mapping[str, Any]],
    *,
    require_alias: bool = False,
) -> Iterator[tuple[str, bool]]:
    """Yields (id, whether it was accepted) as the cluster answers.

    Not accepted are documents that somebody else has changed or created in the meantime (409).
    What a busy cluster refused is sent again; IndexProblem for anything else that it refuses. The
    next bulk is sent when the last one was accepted: a slow cluster slows the reader down. An index
    that is gone would be made again, without a mapping; with `require_alias` it is not.
    """
    from elasticsearch.helpers import streaming_bulk

    with readable_errors(address):
        results = streaming_bulk(
            client,
            (dict(action) for action in actions),
            index=index,
            chunk_size=DOCUMENTS_A_BULK,
            max_chunk_bytes=BYTES_A_BULK,
            max_retries=BULK_RETRIES,
            initial_backoff=FIRST_BACKOFF_S,
            max_backoff=MAX_BACKOFF_S,
            retry_on_status=BUSY,
            raise_on_error=False,
            require_alias=require_alias,
        )
        for accepted, result in results:
            operation, outcome = next(iter(result.items()))
            if operation == "delete" and outcome["status"] == _NOT_FOUND:
                accepted = True
            if not accepted and outcome["status"] != _CONFLICT:
                raise _refused(address, outcome)
            yield str(outcome["_id"]), accepted


def _refused(address: Address, outcome: Mapping[str, Any]) -> IndexProblem:
    said = reason(dict(outcome))
    if "cluster_block" in said or "read-only" in said:
        return IndexProblem(
            f"{address} is read-only; free disk space on the cluster or remove the block "
            f"(index.blocks.*), then run the same command again: {said}"
        )
    if outcome["status"] == _NOT_FOUND:
        return IndexProblem(
            f"{address} was rebuilt or deleted in the meantime; run the same command again"
        )
    return IndexProblem(f"{address} refused document {outcome['_id']}: {said}")
