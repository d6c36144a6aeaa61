"""A screenshot of the page with the images of the demo and the built-in model.

python tests/ui/browser/screenshot.py page.png
python tests/ui/browser/screenshot.py dark.png --dark --width 400 --query 一只猫
python tests/ui/browser/screenshot.py large.png --open
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from serving import TOY_PAGE, browsing, serving, settled
from toy_page import toy_model

from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.ui.cli.demo import collect

WAIT_MS = 120_000
# Three of the images have captions, each in another language, so that CL has hits.
CAPTIONS = {
    "chelsea.txt": "一只橘色的虎斑猫",
    "coffee.txt": "木のテーブルに置かれたコーヒーカップとスプーン",
    "rocket.txt": "a rocket on its launch pad at night",
}


def make_index(folder: Path, toy: bool) -> Path:
    """Index the demo's images below `folder`; returns the path of the index."""
    collect(folder / "images")
    for name, text in CAPTIONS.items():
        (folder / "images" / name).write_text(text, encoding="utf-8")
    with Collection.create(folder / "demo", toy_model() if toy else None) as collection:
        index(collection, [folder / "images"])
    return folder / "demo"


def take(address: str, options: argparse.Namespace) -> None:
    """Save a screenshot once all images have loaded."""
    with browsing() as browser:
        context = browser.new_context(
            viewport={"width": options.width, "height": options.height},
            color_scheme="dark" if options.dark else "light",
            locale=options.locale,
        )
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(f"{address}/?{urlencode({'q': options.query})}")
        page.locator('[class*="st-key-tile"] img').first.wait_for()
        if options.select:
            page.get_by_text("Select", exact=True).click()
            for rank in (1, 3):
                settled(page)
                page.get_by_role("button", name=f"Select image {rank}", exact=True).click()
        if options.open:
            page.locator('.st-key-grid [class*="st-key-open"] button').first.click()
            page.locator('[role="dialog"] .st-key-large img').wait_for()
        page.wait_for_function("[...document.images].every(one => one.naturalWidth > 0)")
        page.wait_for_timeout(1500)  # fonts and transitions
        page.screenshot(path=options.out)


def main() -> None:
    """Parse the options, index, serve, take the screenshot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--query", default="a cup of coffee on a wooden table")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=860)
    parser.add_argument("--locale", default="en-US")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--select", action="store_true", help="select two images")
    parser.add_argument("--open", action="store_true", help="open the first hit in the large view")
    parser.add_argument(
        "--toy", action="store_true", help="use the toy model instead of the built-in one"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = make_index(Path(folder), options.toy)
        with serving([made], TOY_PAGE if options.toy else None) as address:
            take(address, options)


if __name__ == "__main__":
    main()
