"""Originals, selection and exports in a real browser."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import HOSTILE_NAME
from playwright.sync_api import Browser, Download, Locator, Page, expect
from serving import TOKEN, TOY_PAGE, serving, settled

pytestmark = [pytest.mark.browser, pytest.mark.flaky(reruns=2)]  # a browser on a busy machine
Visit = Callable[..., Page]
SLOWLY = {"timeout": 60_000}


def download(page: Page, button: Locator) -> Download:
    settled(page)
    with page.expect_download(timeout=60_000) as started:
        button.click()
    return started.value


@pytest.mark.parametrize(("query", "name"), [("a red car", "car.png"), ("purple", HOSTILE_NAME)])
def test_the_original_is_downloaded_with_its_name_and_bytes(
    visit: Visit, image_root: Path, query: str, name: str
) -> None:
    page = visit(q=query)
    page.get_by_role("button", name="Open image 1", exact=True).click()
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name="Download the original")
    expect(button).to_be_visible(**SLOWLY)
    got = download(page, button)
    if name != HOSTILE_NAME:  # chromium replaces what file systems may not know
        assert got.suggested_filename == name
    assert Path(got.path()).read_bytes() == (image_root / name).read_bytes()
    dialog.get_by_role("button", name="Path", exact=True).click()
    expect(page.get_by_test_id("stCode")).to_contain_text(str(image_root / name))
    assert dialog.get_by_role("button", name="Show in folder").count() == 0  # without the token


def test_several_images_are_selected_and_exported(
    visit: Visit, image_root: Path, tmp_path: Path
) -> None:
    page = visit(q="a red car", mode="cm")
    page.get_by_text("Select", exact=True).click()
    expect(page.get_by_text("0 selected")).to_be_visible(**SLOWLY)
    for count in (1, 2):
        settled(page)
        page.get_by_role("button", name=f"Select image {count}", exact=True).click()
        expect(page.get_by_text(f"{count} selected")).to_be_visible(**SLOWLY)
    expected = {image_root / "car.png", image_root / "car copy.jpg"}
    paths = download(page, page.get_by_role("button", name="Paths (.txt)")).path()
    assert {Path(line) for line in Path(paths).read_text().splitlines()} == expected
    table = download(page, page.get_by_role("button", name="Paths (.csv)"))
    assert table.suggested_filename == "paths.csv"
    archive = download(page, page.get_by_role("button", name="Originals (.zip)")).path()
    with zipfile.ZipFile(archive) as files:
        contents = {files.read(name) for name in files.namelist()}
    assert contents == {path.read_bytes() for path in expected}
    settled(page)
    page.get_by_role("button", name="Select image 1", exact=True).click()
    expect(page.get_by_text("1 selected")).to_be_visible(**SLOWLY)


def test_all_that_is_shown_can_be_selected_and_a_selection_outlives_a_search(visit: Visit) -> None:
    page = visit(q="blue", mode="cm", min="0.3")
    page.get_by_text("Select", exact=True).click()
    page.get_by_role("button", name="Select all shown").click()
    expect(page.get_by_text("1 selected")).to_be_visible(**SLOWLY)
    settled(page)
    field = page.get_by_role("textbox", name="Search", exact=True)
    field.fill("red")
    field.press("Enter")
    expect(page.get_by_role("button", name="Select image 1", exact=True)).to_be_visible(**SLOWLY)
    settled(page)
    page.get_by_role("button", name="Select all shown").click()
    expect(page.get_by_text("3 selected")).to_be_visible(**SLOWLY)
    settled(page)
    page.get_by_role("button", name="Select none").click()
    expect(page.get_by_text("0 selected")).to_be_visible(**SLOWLY)


def test_with_the_token_the_file_manager_is_asked_to_show_the_folder(
    page_of: Callable[..., Page], image_root: Path, tmp_path: Path
) -> None:
    program = tmp_path / "xdg-open"
    program.write_text(
        f'#!/bin/sh\necho "$1" > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/seen\n'
    )
    program.chmod(0o755)
    page = page_of(PATH=f"{tmp_path}:{os.environ['PATH']}", DISPLAY=":0")
    page.get_by_role("button", name="Open image 1", exact=True).click()
    button = page.get_by_role("dialog").get_by_role("button", name="Show in folder")
    expect(button).to_be_visible(**SLOWLY)
    settled(page)
    button.click()
    deadline = time.monotonic() + 60
    while not (tmp_path / "seen").exists() and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    assert (tmp_path / "seen").read_text() == f"{image_root}\n"


@pytest.fixture
def page_of(
    browser: Browser, collections: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Page]]:
    """The page of a server with other environment variables, opened with the token."""
    with ExitStack() as stack:

        def open_page(**environment: str) -> Page:
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            address = stack.enter_context(serving(collections, TOY_PAGE))
            page = stack.enter_context(browser.new_context(locale="en-US")).new_page()
            page.goto(f"{address}/?token={TOKEN}&q=a+red+car")
            page.get_by_text("capsearch", exact=True).wait_for()
            settled(page)
            return page

        yield open_page
