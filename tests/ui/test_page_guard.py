"""What the server answers to requests beside the page: by the browser's cookie, and its uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from capsearch.ui.web import access, server

VISITOR = "v" * 32
Ask = Callable[..., int]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The status of a request by a browser that was shown the page, or by another one."""
    monkeypatch.setattr(access, "_visitors", {VISITOR})
    monkeypatch.setattr(server, "visitor_cookie", lambda: "visitor")
    monkeypatch.setattr(server, "_stored_bytes", lambda: server.MAX_UPLOADS_BYTES - 1000)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def request(method: str, path: str, visitor: str = VISITOR, **headers: str) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        lines = {"cookie": f"visitor={visitor}", **headers}
        raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in lines.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        with ThreadPoolExecutor(1) as thread:  # a browser test may have left a loop in this one
            answer = server.Guard(served)(scope, None, send)  # type: ignore[arg-type]
            thread.submit(asyncio.run, answer).result()
        status: int = sent[0]["status"]
        return status

    return request


@pytest.mark.parametrize("path", ["/", "/static/js/index.js", "/favicon.png", "/_stcore/health"])
def test_the_frame_of_the_page_is_for_everyone(ask: Ask, path: str) -> None:
    assert ask("GET", path, visitor="") == 200


@pytest.mark.parametrize(
    "path", ["/media/00ff.webp", "/_stcore/metrics", "/component/x", "/_stcore/upload_file/a/b"]
)
def test_everything_else_is_for_browsers_that_were_shown_the_page(ask: Ask, path: str) -> None:
    assert ask("GET", path) == 200
    assert ask("GET", path, visitor="w" * 32) == ask("GET", path, visitor="") == 403


def test_uploads_are_bounded_all_together(ask: Ask) -> None:
    upload = "/_stcore/upload_file/session/file"
    assert ask("PUT", upload, content_length="1000") == 200
    assert ask("PUT", upload, content_length="1001") == 413
    assert ask("PUT", upload) == ask("PUT", upload, content_length="-1") == 411
    assert ask("PUT", upload, visitor="w" * 32, content_length="1") == 403
