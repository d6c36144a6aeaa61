"""Who may use the page: Host and Origin of the request, then a token or a password.

    loopback, no password    everyone on this machine may search
    otherwise                whoever has the password or the token may search
    the token                also allows indexing, and opening folders on this machine

The token comes in the URL that `capsearch ui` prints. It is kept in the session and removed from
the address bar.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import threading
import time
from collections.abc import Mapping
from enum import IntEnum
from urllib.parse import urlsplit

import streamlit as st

from capsearch.ui.web.settings import LOOPBACK, TOKEN_PARAM, AccessSettings
from capsearch.ui.web.texts import TEXTS

WRONG_SECRET_S = 1.0  # one wrong token or password a second, for all sessions together
_FORWARDED = ("X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via")
_guessing = threading.Lock()
_visitors: set[str] = set()  # cookies of browsers that may search; of this process


class Rights(IntEnum):
    """What a visitor may do; each includes the ones before."""

    NONE = 0
    SEARCH = 1
    INDEX = 2
    OWN = 3  # the token: this is who started the server


def admitted() -> bool:
    """True if this visitor may search. Otherwise the reason is drawn, and nothing else may be."""
    settings = AccessSettings.from_environment(os.environ)
    if not same_site(st.context.headers, settings.hosts):
        _refuse("wrong_host")
        return False
    rights = granted()
    given = _secret_in_url() or st.session_state.get("secret", "")
    if given and rights < Rights.OWN:
        rights = rights_of_secret(settings, given)
    elif rights == Rights.NONE and _open_to_this_machine(settings):
        rights = Rights.INDEX if settings.allow_indexing else Rights.SEARCH
    if rights == Rights.NONE:
        _ask(wrong=bool(given))
        return False
    st.session_state["rights"] = rights
    _visitors.add(st.context.cookies.get(visitor_cookie(), ""))
    return True


def visitor_cookie() -> str:
    """The name of the cookie by which server.py knows a browser; browsers share those of ports."""
    return f"capsearch_visitor_{st.get_option('server.port')}"


def may_fetch(visitor: str) -> bool:
    """True if the page was shown to this browser: it may fetch thumbnails, and upload images."""
    return bool(visitor) and visitor in _visitors


def granted() -> Rights:
    """What this session has been allowed so far."""
    rights: Rights = st.session_state.get("rights", Rights.NONE)
    return rights


def may_index() -> bool:
    """Whoever may choose a folder to index can view every image in it."""
    return granted() >= Rights.INDEX


def owns_this_machine() -> bool:
    """True if the visitor started the server and sits at the machine it runs on."""
    return granted() >= Rights.OWN and _local()


def rights_of_secret(settings: AccessSettings, secret: str) -> Rights:
    """What a token or password allows; a wrong one takes a second."""
    if _equal(secret, settings.token) or _first_use(settings.launch_token, secret):
        return Rights.OWN
    if _equal(secret, settings.password):
        return Rights.INDEX if settings.allow_indexing else Rights.SEARCH
    with _guessing:
        time.sleep(WRONG_SECRET_S)
    return Rights.NONE


def same_site(headers: Mapping[str, str], names: tuple[str, ...] = ()) -> bool:
    """True if the request names this server, and comes from its own page.

    A page of another site can reach a server on this machine under a name of its own that
    resolves to 127.0.0.1 (DNS rebinding); hence names have to be known, addresses need not. Only
    browsers are lured into that, and they always send Host and Origin.
    """
    host, origin = headers.get("Host"), headers.get("Origin")
    if host is not None and not _known(_hostname(f"//{host}"), names):
        return False
    return origin is None or host is None or urlsplit(origin).netloc == host


def forwarded(headers: Mapping[str, str]) -> bool:
    """True if a proxy passed the request on: it may come from anywhere."""
    return any(name in headers for name in _FORWARDED)


def _known(host: str, names: tuple[str, ...]) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host in {name.lower() for name in names}
    return True


def _hostname(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _open_to_this_machine(settings: AccessSettings) -> bool:
    return _local() and not settings.password


def _local() -> bool:
    return st.get_option("server.address") in LOOPBACK and not forwarded(st.context.headers)


def _equal(given: str, secret: str) -> bool:
    """Compares in constant time; an unset secret equals nothing."""
    return bool(secret) and hmac.compare_digest(given.encode(), secret.encode())


def _first_use(launch_token: str, given: str) -> bool:
    if not _equal(given, launch_token):
        return False
    with _guessing:
        used = _used_tokens()
        first = launch_token not in used
        used.add(launch_token)
    return first


@st.cache_resource(show_spinner=False)
def _used_tokens() -> set[str]:
    """The launch tokens that have been used; all sessions share it."""
    return set()


def _secret_in_url() -> str:
    """The token of the URL, which is removed from it."""
    given: str = st.query_params.get(TOKEN_PARAM, "")
    if TOKEN_PARAM in st.query_params:
        del st.query_params[TOKEN_PARAM]
    return given


def _ask(wrong: bool) -> None:
    _refuse("wrong_secret" if wrong else "secret_needed")
    label = " / ".join(texts.secret for texts in TEXTS.values())
    st.text_input(label, type="password", key="secret", autocomplete="current-password")


def _refuse(reason: str) -> None:
    """A plain page in every language: the visitor's is not known yet."""
    st.text("capsearch")
    for texts in TEXTS.values():
        st.text(getattr(texts, reason))
