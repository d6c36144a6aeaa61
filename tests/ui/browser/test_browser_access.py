"""Tokens, passwords and other names of the server, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, expect
from serving import REBOUND, TOKEN, TOY_PAGE, serving, settled
from streamlit.proto.BackMsg_pb2 import BackMsg

from capsearch.ui.web.settings import AccessSettings

pytestmark = [pytest.mark.browser, pytest.mark.flaky(reruns=2)]  # a browser on a busy machine
SLOWLY = {"timeout": 60_000}
PASSWORD = "open sesame"
# Runs the page over a WebSocket of our own; resolves to all that it sends, as text.
OPEN_STREAM = """([url, message]) => new Promise(resolve => {
  const socket = new WebSocket(url, ["streamlit"]);
  let received = "";
  socket.binaryType = "arraybuffer";
  socket.onopen = () => socket.send(new Uint8Array(message));
  socket.onmessage = event => { received += new TextDecoder().decode(event.data) };
  socket.onclose = () => resolve(received);
  setTimeout(() => resolve(received), 5000);
})"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(locale="en-US") as context:
        yield context.new_page()


def test_the_token_disappears_from_the_address_bar_and_reaches_no_log(
    page: Page, collections: tuple[Path, Path], tmp_path: Path
) -> None:
    log, times = tmp_path / "server.log", tmp_path / "times.jsonl"
    with serving(collections, TOY_PAGE, times, log=log) as address:
        page.goto(f"{address}/?token={TOKEN}&q=red")
        page.wait_for_function("!location.search.includes('token')")
        settled(page)
        page.get_by_role("button", name="Library").click()
        expect(page.get_by_role("button", name="Index this folder")).to_be_visible(**SLOWLY)
        assert page.url.endswith("?q=red")
        page.goto(f"{address}/?token=not-{TOKEN}")
        expect(page.get_by_text("This password or token is wrong.")).to_be_visible(**SLOWLY)
    assert '"total_ms"' in times.read_text()
    assert log.stat().st_size > 0
    assert TOKEN not in times.read_text() + log.read_text()


def test_a_password_is_asked_for_and_the_permalink_is_kept(
    page: Page, collections: tuple[Path, Path]
) -> None:
    with serving(collections, TOY_PAGE, access=AccessSettings(password=PASSWORD)) as address:
        page.goto(f"{address}/?q=red")
        field = page.locator("input[type=password]")
        for typed, shown in (("wrong", "密码或令牌不正确。"), (PASSWORD, "images shown")):
            field.wait_for()
            settled(page)
            assert page.locator("img").count() == 0
            field.fill(typed)
            field.press("Enter")
            expect(page.get_by_text(shown)).to_be_visible(**SLOWLY)
        expect(page.get_by_role("textbox", name="Search", exact=True)).to_have_value("red")


def test_another_name_for_this_machine_shows_nothing(page: Page, address: str) -> None:
    """DNS rebinding."""
    page.goto(address.replace("127.0.0.1", REBOUND) + f"/?token={TOKEN}")
    expect(page.get_by_text("a name that the server does not know")).to_be_visible(**SLOWLY)
    assert page.locator("img, button[kind]").count() == 0


@pytest.fixture
def other_server() -> Iterator[str]:
    """Another web server on this machine: its pages have another origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_page_of_another_server_on_this_machine_sees_nothing(
    page: Page, address: str, other_server: str
) -> None:
    """Streamlit accepts every origin on this machine."""
    message = BackMsg()
    message.rerun_script.query_string = f"token={TOKEN}"
    stream = address.replace("http", "ws") + "/_stcore/stream"
    arguments = [stream, list(message.SerializeToString())]
    page.goto(address)
    settled(page)
    assert "Find images with a sentence" in page.evaluate(OPEN_STREAM, arguments)
    page.goto(other_server)
    assert page.evaluate(OPEN_STREAM, arguments) == ""
