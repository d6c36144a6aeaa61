"""The page in a real browser: searching, large view, filters, paging, uploads, permalinks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect
from serving import settled

pytestmark = [pytest.mark.browser, pytest.mark.flaky(reruns=2)]  # a browser on a busy machine
Visit = Callable[..., Page]
SLOWLY = {"timeout": 60_000}  # the machine may be busy


def tiles(page: Page) -> Locator:
    return page.locator('.st-key-grid > div > [class*="st-key-tile"]')


def first_tile(page: Page) -> Locator:
    return tiles(page).first


def open_first(page: Page) -> Locator:
    """Click the first image; the large view."""
    first_tile(page).get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible(**SLOWLY)
    settled(page)
    return dialog


def param(page: Page, name: str) -> str | None:
    return parse_qs(urlsplit(page.url).query).get(name, [None])[0]


def reload(page: Page) -> None:
    """Reload once the server is idle: before that it may still be writing the URL."""
    settled(page)
    page.reload()


def wait_for_param(page: Page, name: str) -> str:
    page.wait_for_function("name => new URLSearchParams(location.search).has(name)", arg=name)
    value = param(page, name)
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("query", "box", "locale", "caption"),
    [
        ("a red car", "Search", "en-US", "a red car"),
        ("红色的车", "搜索", "zh-CN", "一辆红色的车"),
        ("赤い車", "検索", "ja-JP", "赤い車"),
    ],
)
def test_each_language_finds_the_right_image_first_and_shows_its_own_caption(
    visit: Visit, query: str, box: str, locale: str, caption: str
) -> None:
    page = visit(locale)
    field = page.get_by_role("textbox", name=box, exact=True)
    settled(page)
    field.fill(query)
    field.press("Enter")
    expect(first_tile(page)).to_contain_text(caption, **SLOWLY)
    expect(first_tile(page)).to_contain_text("CM")
    expect(first_tile(page).locator("img")).to_have_js_property("complete", True)
    assert wait_for_param(page, "q") == query


def test_the_large_view_shows_all_captions_the_file_and_the_near_duplicate(visit: Visit) -> None:
    page = visit(q="a red car")
    dialog = open_first(page)
    for known in ("a red car", "一辆红色的车", "赤い車", "car.png", "90 × 60", "Near-duplicates"):
        expect(dialog).to_contain_text(known, **SLOWLY)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden(**SLOWLY)


def test_the_large_view_has_its_own_url_and_arrow_keys_go_to_the_next_image(visit: Visit) -> None:
    page = visit(q="a red car")
    open_first(page)
    first = wait_for_param(page, "view")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("dialog")).to_contain_text("car copy.jpg", **SLOWLY)
    assert param(page, "view") != first
    reload(page)
    expect(page.get_by_role("dialog")).to_contain_text("car copy.jpg", **SLOWLY)


def test_an_image_of_the_collection_can_be_searched_with(visit: Visit) -> None:
    page = visit(q="blue", mode="cm")
    dialog = open_first(page)
    dialog.get_by_role("button", name="Search with this image").click()
    expect(page.get_by_text("Images like this one")).to_be_visible(**SLOWLY)
    expect(dialog).to_be_hidden(**SLOWLY)
    expect(first_tile(page)).to_contain_text("青い海", **SLOWLY)
    wait_for_param(page, "like")


def test_an_image_can_be_reached_and_opened_with_the_keyboard_alone(visit: Visit) -> None:
    page = visit(q="a red car")
    button = page.get_by_role("button", name="Open image 1", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("car.png", **SLOWLY)


def test_a_filter_reduces_the_hits_and_is_stored_in_the_url(visit: Visit) -> None:
    page = visit(q="a red car")
    expect(first_tile(page)).to_contain_text("a red car", **SLOWLY)
    page.get_by_role("button", name="Filters").click()
    settled(page)
    page.get_by_role("combobox", name="Folders").click()
    page.get_by_role("option", name="images/trips (1)").click()
    expect(tiles(page)).to_have_count(1, **SLOWLY)
    assert wait_for_param(page, "folder").endswith("trips")


def test_more_appends_and_never_repeats_or_drops_a_hit(visit: Visit) -> None:
    page = visit(q="green")
    expect(tiles(page)).to_have_count(24, **SLOWLY)
    images = tiles(page).locator("img")
    expect(images).to_have_count(24, **SLOWLY)
    before = images.evaluate_all("all => all.map(one => one.src)")
    for count in (48, 64):
        settled(page)
        page.get_by_role("button", name="More").click()
        expect(tiles(page)).to_have_count(count, **SLOWLY)
    expect(page.get_by_role("button", name="More")).to_have_count(0, **SLOWLY)
    after = images.evaluate_all("all => all.map(one => one.src)")
    assert after[:24] == before
    assert len(set(after)) == 64


def test_an_uploaded_image_finds_itself_and_text_can_be_added(
    visit: Visit, image_root: Path
) -> None:
    page = visit()
    page.set_input_files('input[type="file"]', image_root / "trips" / "sea.png")
    expect(page.get_by_text("Your image")).to_be_visible(**SLOWLY)
    expect(first_tile(page)).to_contain_text("青い海", **SLOWLY)
    field = page.get_by_role("textbox", name="Search", exact=True)
    settled(page)
    field.fill("a red car")
    field.press("Enter")
    expect(page.get_by_text("Weight of the image")).to_be_visible(**SLOWLY)
    expect(first_tile(page)).to_contain_text("a red car", **SLOWLY)


def test_a_file_that_is_no_image_is_an_error_message(visit: Visit, tmp_path: Path) -> None:
    fake = tmp_path / "fake.jpg"
    fake.write_bytes(b"not an image at all")
    page = visit()
    page.set_input_files('input[type="file"]', fake)
    expect(page.get_by_text("cannot be used as an image")).to_be_visible(**SLOWLY)


def test_a_permalink_shows_the_same_after_a_reload(visit: Visit) -> None:
    page = visit(q="blue", mode="cm", min="0.3")
    expect(tiles(page)).to_have_count(1, **SLOWLY)
    reload(page)
    expect(tiles(page)).to_have_count(1, **SLOWLY)
    expect(page.get_by_role("textbox", name="Search", exact=True)).to_have_value("blue")
    assert (param(page, "mode"), param(page, "min")) == ("cm", "0.3")


def test_the_browsers_back_button_returns_to_the_previous_search(visit: Visit) -> None:
    page = visit(q="a red car")
    expect(first_tile(page)).to_contain_text("a red car", **SLOWLY)
    field = page.get_by_role("textbox", name="Search", exact=True)
    settled(page)
    field.fill("blue sea")
    field.press("Enter")
    expect(first_tile(page)).to_contain_text("青い海", **SLOWLY)
    page.go_back()
    expect(first_tile(page)).to_contain_text("a red car", **SLOWLY)
    expect(field).to_have_value("a red car", **SLOWLY)


def test_nothing_moves_when_the_images_arrive(visit: Visit) -> None:
    def boxes(page: Page) -> list[list[float]]:
        return tiles(page).evaluate_all(
            "all => all.map(one => one.getBoundingClientRect())"
            ".map(box => [box.x, box.y, box.width, box.height].map(Math.round))"
        )

    loaded, bare = visit(q="a red car"), visit()
    bare.route("**/media/*.jpg", lambda route: route.abort())
    bare.goto(loaded.url)
    for page in (loaded, bare):
        expect(tiles(page).locator("img")).to_have_count(24, **SLOWLY)
    loaded.wait_for_function("[...document.images].every(one => one.naturalWidth > 0)")
    assert boxes(bare) == boxes(loaded)
