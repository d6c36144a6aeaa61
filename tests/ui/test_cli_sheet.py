"""The contact sheet: self-contained, and every text in it is escaped."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Run = Callable[..., Any]
EVIL = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Collects the tags of a page and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def sheet_of(run: Run, target: Path, *arguments: object) -> Tags:
    ran = run("query", *arguments, "--sheet", target)
    assert ran.code == 0, ran.err
    return Tags(target.read_text(encoding="utf-8"))


def test_the_page_shows_every_hit_and_needs_no_other_file(
    indexed: Path, run: Run, tmp_path: Path
) -> None:
    page = sheet_of(run, tmp_path / "hits.html", "red car")
    sources = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
    assert len(sources) == 4
    assert all(source.startswith("data:image/") for source in sources)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links[0] == (indexed / "red.png").as_uri()
    assert "red.png" in page.text


def test_file_names_captions_and_queries_are_escaped(
    indexed: Path, run: Run, tmp_path: Path, image: Callable[..., Path]
) -> None:
    name = '"><img src=x onerror=alert(1)>.png'
    image(indexed / name, "purple")
    (indexed / (name.removesuffix(".png") + ".txt")).write_text(f"purple {EVIL}", encoding="utf-8")
    assert run("index", indexed).code == 0
    page = sheet_of(run, tmp_path / "hits.html", f"purple {EVIL}")
    assert "script" not in {tag for tag, _ in page.tags}
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert page.text.count(EVIL) >= 2  # title and caption, as text
    assert name in page.text


def test_the_security_policy_allows_loading_nothing(
    indexed: Path, run: Run, tmp_path: Path
) -> None:
    page = sheet_of(run, tmp_path / "hits.html", "red")
    policies = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    assert policies
    assert "default-src 'none'" in (policies[0] or "")


def test_a_missing_image_file_leaves_a_placeholder(indexed: Path, run: Run, tmp_path: Path) -> None:
    (indexed / "red.png").unlink()
    page = sheet_of(run, tmp_path / "hits.html", "red")
    assert "image not readable" in page.text


def test_the_sheet_can_be_an_image(indexed: Path, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "new" / "hits.png"
    assert run("query", "red", "--sheet", target).code == 0
    with Image.open(target) as sheet:
        red, _, blue = sheet.convert("RGB").getpixel((120, 120))
        assert sheet.size == (4 * 240, 240 + 24)
    assert (red > 250, blue < 5) == (True, True)  # the best hit comes first


def test_open_shows_the_sheet_in_the_browser(
    indexed: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache")
    assert run("query", "red", "--open").code == 0
    assert opened == [(tmp_path / "cache" / "last-query.html").as_uri()]
    assert (tmp_path / "cache" / "last-query.html").exists()


@pytest.mark.parametrize("name", ["IMG_0001.png", "notes.html"])
def test_a_sheet_never_overwrites_a_file_that_is_not_a_sheet(
    indexed: Path, run: Run, name: str
) -> None:
    theirs = indexed / name
    theirs.write_bytes((indexed / "red.png").read_bytes())
    before = theirs.read_bytes()
    ran = run("query", "red", "--sheet", theirs)
    assert (ran.code, ran.out) == (2, "")
    assert "not overwritten" in ran.err
    assert theirs.read_bytes() == before


@pytest.mark.parametrize("name", ["hits.png", "hits.html"])
def test_a_sheet_replaces_an_earlier_sheet_and_an_empty_file(
    indexed: Path, run: Run, tmp_path: Path, name: str
) -> None:
    target = tmp_path / name
    target.touch()
    assert run("query", "red", "--sheet", target).code == 0
    first = target.read_bytes()
    assert run("query", "blue", "--limit", "1", "--sheet", target).code == 0
    assert target.read_bytes() != first


def test_a_sheet_is_not_written_through_a_link(indexed: Path, run: Run, tmp_path: Path) -> None:
    link = tmp_path / "hits.html"
    link.symlink_to(tmp_path / "elsewhere.html")
    assert run("query", "red", "--sheet", link).code == 2
    assert not (tmp_path / "elsewhere.html").exists()
