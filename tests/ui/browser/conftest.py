"""A small collection of coloured images, its page on a real server, and a real browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page
from serving import TOY_PAGE, browsing, chromium, serving, settled
from toy_page import toy_model

from capsearch.engine.fakes import COLOURS, colour_image
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection

OUTPUT = Path(__file__).parents[2] / "output"
TIMEOUT_MS = 60_000  # generous, for a busy machine
HOSTILE_NAME = '"><img src=x>.jpg'
HOSTILE_CAPTIONS = (
    "<script>alert(1)</script> purple",
    "![x](http://127.0.0.1:9/x.png) :red[purple] $x^2$ :smile:",
)
FILLERS = 60  # so that there are three pages
NO_CHROMIUM = "no chromium: apt-get install chromium fonts-noto-cjk, or set CHROMIUM"


def in_ci() -> bool:
    """True where every test has to run: $CI is set, as all CI services do."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def save(path: Path, *colours: str, size: tuple[int, int] = (90, 60)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(colour_image(*colours, size=max(size)))
    image.crop((0, 0, *size)).save(path, quality=95)
    return path


def write_images(root: Path) -> None:
    """The special images, and fillers of which no two are the same file."""
    save(root / "car.png", "red")
    (root / "car.txt").write_text("a red car\n一辆红色的车\n赤い車\n", encoding="utf-8")
    save(root / "car copy.jpg", "red", size=(120, 80))
    save(root / "trips" / "sea.png", "blue", size=(60, 90))
    (root / "trips" / "sea.txt").write_text("青い海\n", encoding="utf-8")
    hostile = save(root / HOSTILE_NAME, "purple")
    hostile.with_suffix(".txt").write_text("\n".join(HOSTILE_CAPTIONS), encoding="utf-8")
    names = [name for name in COLOURS if name not in ("red", "blue", "purple")]
    for at in range(FILLERS):
        colours = (names[at % len(names)], names[(at // len(names)) % len(names)])
        pixels = colour_image(*colours, size=64)
        pixels[0, 0] = np.array([at, at, at], np.uint8)  # a different file of the same colours
        path = root / "fillers" / f"{at:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


@pytest.fixture(scope="session")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page") / "images"
    write_images(root)
    return root


@pytest.fixture(scope="session")
def collections(image_root: Path) -> tuple[Path, Path]:
    """An index of all images, and a folder for an index that does not exist yet."""
    first = image_root.parent / "holidays"
    with Collection.create(first, toy_model()) as collection:
        index(collection, [image_root])
    return first, image_root.parent / "empty"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium() is None and in_ci():
        pytest.fail(NO_CHROMIUM, pytrace=False)
    if chromium() is None:
        pytest.skip(NO_CHROMIUM)
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="session")
def address(browser: Browser, collections: tuple[Path, Path]) -> Iterator[str]:
    with serving(collections, TOY_PAGE) as url:
        yield url


@pytest.fixture
def visit(
    browser: Browser, address: str, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Page]]:
    """Open the page at a permalink: visit(q="red"). A screenshot is saved after the test."""
    contexts = []

    def open_page(locale: str = "en-US", width: int = 1280, **params: str) -> Page:
        context = browser.new_context(locale=locale, viewport={"width": width, "height": 900})
        context.set_default_timeout(TIMEOUT_MS)
        contexts.append(context)
        page = context.new_page()
        page.goto(f"{address}/?{urlencode(params)}")
        page.get_by_text("capsearch", exact=True).wait_for()
        settled(page)
        return page

    yield open_page
    OUTPUT.mkdir(exist_ok=True)
    for at, context in enumerate(contexts):
        context.pages[0].screenshot(path=OUTPUT / f"{request.node.name}-{at}.png")
        context.close()
