"""Server time of a search on the page, from its timing log, in a collection of 10,000 images.

python tests/ui/browser/measure.py                  # the built-in model
python tests/ui/browser/measure.py --toy --images 1000
python tests/ui/browser/measure.py --index DIR      # a collection that is there already
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, expect
from serving import TOY_PAGE, browsing, serving
from toy_page import toy_model

from capsearch.engine.fakes import CONCEPTS
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection

WARM_UP = 5
WAIT_MS = 120_000
SCENES = ("{} on the left", "左边的{}", "左の{}")  # in the order of CONCEPTS' languages


def write_images(folder: Path, count: int) -> None:
    """Images of random colours, every tenth with a caption in one of three languages."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for at in range(count):
        coarse = random.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((192, 128)).save(folder / f"{at:05}.jpg")
        if at % 10 == 0:
            language = at // 10 % 3
            text = SCENES[language].format(CONCEPTS[at // 30 % len(CONCEPTS)][language])
            (folder / f"{at:05}.txt").write_text(text, encoding="utf-8")


def queries(count: int) -> list[str]:
    """Different queries, alternating between the languages."""
    return [
        SCENES[at % 3].format(CONCEPTS[at // 3 % len(CONCEPTS)][at % 3]) + f" {at}"
        for at in range(count)
    ]


def search(page: Page, log: Path, text: str) -> None:
    """Type a query and wait until the log has its line."""
    lines = len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0
    box = page.locator(".st-key-search_row input[type=text]")
    box.fill(text)
    box.press("Enter")
    page.wait_for_function(
        "text => new URLSearchParams(location.search).get('q') == text", arg=text
    )
    for _ in range(600):
        if log.exists() and len(log.read_text(encoding="utf-8").splitlines()) > lines:
            return
        page.wait_for_timeout(50)
    raise TimeoutError(f"no line about {text!r} in {log}")


def report(log: Path) -> None:
    """p50 and p95 of every part, in milliseconds."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()][WARM_UP:]
    print(f"{lines[0]['images']} images, {len(lines)} queries, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}, {platform.machine()}")  # fmt: skip
    for name in [name for name in lines[0] if name.endswith("_ms")]:
        p50, p95 = np.percentile([line[name] for line in lines], [50, 95])
        print(f"{name:20} p50 {p50:7.1f}   p95 {p95:7.1f}")


def measure(made: Path, options: argparse.Namespace, log: Path) -> None:
    """Drive a browser through the queries."""
    with serving([made], TOY_PAGE if options.toy else None, log) as address, browsing() as browser:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(address)
        expect(page.locator(".st-key-grid img")).to_have_count(24, timeout=WAIT_MS)
        for text in queries(WARM_UP + options.queries):
            search(page, log, text)
    report(log)


def main() -> None:
    """Parse the options, index, serve, search and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--index", type=Path, help="use this index instead of creating one")
    parser.add_argument(
        "--toy", action="store_true", help="use the toy model instead of the built-in one"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = options.index or Path(folder) / "index"
        if options.index is None:
            write_images(Path(folder) / "images", options.images)
            with Collection.create(made, toy_model() if options.toy else None) as collection:
                index(collection, [Path(folder) / "images"])
        measure(made, options, Path(folder) / "times.jsonl")


if __name__ == "__main__":
    main()
