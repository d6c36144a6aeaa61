"""What `streamlit run` serves: `streamlit run server.py ... -- PAGE`.

Streamlit runs the page anew for every visitor and every change; this file once, as the process
starts. The page decides who may see it (access.py); what Streamlit serves beside the page, such as
thumbnails and uploads, is kept by `Guard` for browsers to which the page was shown.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import threading
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.runtime import get_instance

from capsearch.ui.web.access import may_fetch, visitor_cookie

GRACE_S = 5.0  # between asking a process to end and ending it
MAX_UPLOADS_BYTES = 200_000_000  # of all visitors together; Streamlit keeps them in memory
# The frame that the page is drawn in holds nothing of anyone's: index.html and what it loads.
_FRAME = re.compile(r"/(static/.*|[^/_][^/]*|_stcore/(health|host-config))?")
_VISITOR = re.compile(r"[\w-]{32}")


class Guard:
    """ASGI middleware that gives every browser a cookie, and asks access.py about it.

    Refused are websockets of pages of another origin, for which Streamlit would look up its own
    address at a public server; everything but the frame to browsers that were not shown the page;
    and uploads beyond MAX_UPLOADS_BYTES.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.receiving = 0  # bytes of uploads that have been let in and are not stored yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403 (or 411, 413 for uploads)."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        visitor = _visitor(headers)
        refused = self._refused(scope, headers, visitor)
        if refused:
            await _refuse(refused, scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "PUT":
            size = int(headers["content-length"])
            self.receiving += size
            try:
                await self.app(scope, receive, send)
            finally:
                self.receiving -= size
        elif visitor:
            await self.app(scope, receive, send)
        else:
            await self._introduce(scope, receive, send)

    def _refused(self, scope: Scope, headers: Headers, visitor: str) -> int:
        """The HTTP status of a request that is refused, else 0."""
        if scope["type"] == "websocket":
            origin = headers.get("origin")
            return 403 if origin and urlsplit(origin).netloc != headers.get("host") else 0
        if _FRAME.fullmatch(scope["path"]):
            return 0 if scope["method"] in ("GET", "HEAD", "OPTIONS") else 403
        if not may_fetch(visitor):
            return 403
        if scope["method"] != "PUT":
            return 0
        size = headers.get("content-length", "")
        if not re.fullmatch(r"[0-9]{1,12}", size):
            return 411
        return 413 if self.receiving + int(size) + _stored_bytes() > MAX_UPLOADS_BYTES else 0

    async def _introduce(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give a browser its cookie, which the page sees as if it had been sent."""
        cookie = f"{visitor_cookie()}={secrets.token_urlsafe(24)}"
        sent = [value for name, value in scope["headers"] if name == b"cookie"]
        others = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
        joined = b"; ".join([*sent, cookie.encode("ascii")])

        async def with_cookie(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                message.setdefault("headers", [])
                value = f"{cookie}; Path=/; HttpOnly; SameSite=Lax"
                MutableHeaders(scope=message).append("set-cookie", value)
            await send(message)

        await self.app({**scope, "headers": [*others, (b"cookie", joined)]}, receive, with_cookie)


def _visitor(headers: Headers) -> str:
    """The browser's cookie; empty if it has none of ours."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(visitor_cookie())
    except CookieError:
        return ""
    return morsel.value if morsel and _VISITOR.fullmatch(morsel.value) else ""


def _stored_bytes() -> int:
    files = get_instance().uploaded_file_mgr.file_storage  # type: ignore[attr-defined]
    return sum(len(file.data) for session in list(files.values()) for file in session.values())


async def _refuse(status: int, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
    else:
        await PlainTextResponse("capsearch: refused", status)(scope, receive, send)


def end_with_parent() -> None:
    """End this process when stdin closes, which `capsearch ui` holds open as long as it runs.

    A server that outlived it would go on to show photographs, with nobody to stop it.
    """

    def wait_for_the_end() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(GRACE_S)
        os._exit(1)

    threading.Thread(target=wait_for_the_end, daemon=True, name="parent").start()


if __name__ == "server":  # the name under which `streamlit run` imports it
    end_with_parent()
    app = st.App(Path(sys.argv[1]), middleware=[Middleware(Guard)])
