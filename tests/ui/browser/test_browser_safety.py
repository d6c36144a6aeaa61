"""Hostile captions, file names and URLs are shown as text and open nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import HOSTILE_CAPTIONS, HOSTILE_NAME
from playwright.sync_api import Page, expect
from serving import TOKEN, settled

pytestmark = [pytest.mark.browser, pytest.mark.flaky(reruns=2)]  # a browser on a busy machine
Visit = Callable[..., Page]
SLOWLY = {"timeout": 60_000}


def test_hostile_captions_and_names_show_as_text(visit: Visit) -> None:
    page = visit()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(f"a caption ran: {dialog.message}"))
    page.goto(f"{page.url}?q=purple")
    settled(page)
    page.get_by_role("button", name="Open image 1", exact=True).click()
    large = page.get_by_role("dialog")
    for text in (*HOSTILE_CAPTIONS, HOSTILE_NAME):
        expect(large.get_by_text(text)).to_be_visible(**SLOWLY)
    assert page.locator("img[src='x'], img[src*=':9/']").count() == 0
    assert page.locator("main script, [role=dialog] script").count() == 0
    assert not [url for url in requested if ":9/" in url]


def test_a_hostile_query_in_a_url_shows_as_text(visit: Visit) -> None:
    query = "![x](http://127.0.0.1:9/y.png) <img src=y> :red[purple]"
    page = visit(q=query)
    field = page.get_by_role("textbox", name="Search", exact=True)
    expect(field).to_have_value(query, **SLOWLY)
    settled(page)
    field.fill("red")
    field.press("Enter")
    settled(page)
    page.get_by_role("combobox", name="Recent searches").click()
    expect(page.get_by_role("option", name=query)).to_be_visible(**SLOWLY)
    assert page.locator("img[src='y'], img[src*=':9/']").count() == 0


@pytest.mark.parametrize("unknown", ["../../etc/passwd", "/etc/passwd", "%2e%2e/x", "nobody"])
def test_an_id_that_is_not_in_the_catalog_opens_nothing(visit: Visit, unknown: str) -> None:
    page = visit(q="red", view=unknown)
    expect(page.get_by_text("not in the collection")).to_be_visible(**SLOWLY)
    assert page.get_by_role("dialog").locator("img").count() == 0


def test_a_collection_that_is_not_offered_is_not_opened(visit: Visit, image_root: Path) -> None:
    page = visit(**{"in": str(image_root)})
    page.get_by_role("button", name="Library").click()
    expect(page.get_by_text("64 images")).to_be_visible(**SLOWLY)  # the first one offered


def test_an_empty_collection_shows_advice_and_can_be_filled_from_the_page(
    visit: Visit, image_root: Path
) -> None:
    page = visit(**{"in": "empty", "token": TOKEN})
    expect(page.get_by_text("Nothing is indexed here yet")).to_be_visible(**SLOWLY)
    page.get_by_role("button", name="Library").click()
    field = page.get_by_role("textbox", name="Folder on this computer")
    settled(page)
    field.fill("/no/such/folder")
    settled(page)
    page.get_by_role("button", name="Index this folder").click()
    expect(page.get_by_text("no such folder")).to_be_visible(**SLOWLY)
    settled(page)
    field.fill(str(image_root / "trips"))
    settled(page)
    page.get_by_role("button", name="Index this folder").click()
    expect(page.locator('.st-key-grid [class*="st-key-tile"] img')).to_have_count(1, **SLOWLY)
