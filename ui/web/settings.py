"""What `capsearch ui` passes to the server that it starts, as environment variables.

The environment of a process is visible to its own user only, unlike its command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
