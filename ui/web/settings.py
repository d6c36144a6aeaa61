"""What `capsearch ui` passes to the server that it starts, as environment variables.

The environment of a process is visible to its own user only, unlike its command line.

Server time of each search: one JSON line a query, if `capsearch ui --timing-log` is given.

The text of a query is never logged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # addresses that only this machine can reach
INDEXES_VARIABLE = "CAPSEARCH_UI_INDEXES"  # index folders, os.pathsep between them
BACKENDS_VARIABLE = "CAPSEARCH_UI_BACKENDS"  # URLs of collections, spaces between them
TOKEN_VARIABLE = "CAPSEARCH_UI_TOKEN"
LAUNCH_VARIABLE = "CAPSEARCH_UI_LAUNCH_TOKEN"
PASSWORD_VARIABLE = "CAPSEARCH_UI_PASSWORD"
INDEXING_VARIABLE = "CAPSEARCH_UI_ALLOW_INDEXING"
HOSTS_VARIABLE = "CAPSEARCH_UI_HOSTS"  # names, spaces between them
TOKEN_PARAM = "token"  # of the URL
SECRETS = (TOKEN_VARIABLE, LAUNCH_VARIABLE, PASSWORD_VARIABLE)


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Who may use the page. Without a token and a password, nobody beyond this machine."""

    token: str = ""  # lets its bearer do everything
    launch_token: str = ""  # the same, once: for the browser's command line, which others can read
    password: str = ""  # lets its bearer search
    allow_indexing: bool = False  # whoever may search may also index folders
    hosts: tuple[str, ...] = ()  # names of this server besides addresses and localhost

    def to_environment(self) -> dict[str, str]:
        """As environment variables."""
        return {
            TOKEN_VARIABLE: self.token,
            LAUNCH_VARIABLE: self.launch_token,
            PASSWORD_VARIABLE: self.password,
            INDEXING_VARIABLE: "1" if self.allow_indexing else "",
            HOSTS_VARIABLE: " ".join(self.hosts),
        }

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AccessSettings:
        """The inverse of `to_environment`; unset variables grant nothing."""
        get = environment.get
        return cls(
            get(TOKEN_VARIABLE, ""),
            get(LAUNCH_VARIABLE, ""),
            get(PASSWORD_VARIABLE, ""),
            bool(get(INDEXING_VARIABLE)),
            tuple(get(HOSTS_VARIABLE, "").split()),
        )


VARIABLE = "CAPSEARCH_UI_TIMING_LOG"  # a file to append to; unset: no log
LOG_MARK = b'{"at": "'  # how its lines start


class Stopwatch:
    """Milliseconds of one run of the page, lap by lap."""

    def __init__(self) -> None:
        self._started = self._last = perf_counter()
        self.laps_ms: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End a lap; laps with the same name add up."""
        now = perf_counter()
        self.laps_ms[name] = self.laps_ms.get(name, 0.0) + 1e3 * (now - self._last)
        self._last = now

    def total_ms(self) -> float:
        """Milliseconds since the run began."""
        return 1e3 * (perf_counter() - self._started)


def log(watch: Stopwatch, engine_ms: Mapping[str, float], facts: Mapping[str, object]) -> None:
    """Append one line about a search: laps and total of the page, parts of the engine."""
    target = os.environ.get(VARIABLE)
    if not target:
        return
    line = {
        "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        **facts,
        **{f"{name}_ms": round(value, 2) for name, value in engine_ms.items()},
        **{f"page_{name}_ms": round(value, 2) for name, value in watch.laps_ms.items()},
        "total_ms": round(watch.total_ms(), 2),
    }
    with Path(target).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
