"""The grid of images. Names, captions and tags are drawn with st.text: never as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from capsearch.encoders import concepts
from capsearch.engine.records import (
    Caption,
    Contributions,
    Document,
    ImageRecord,
    SearchResult,
    Tag,
    Unit,
)
from capsearch.ui.opening import AnyCollection
from capsearch.ui.output.scores import score_text
from capsearch.ui.output.terminal import printable
from capsearch.ui.texts import Texts
from capsearch.ui.web.images import tile_files
from capsearch.ui.web.style import ratio_bucket

MAX_TAGS = 5


@dataclass(frozen=True, slots=True)
class Tile:
    """An image in the grid with the texts below it."""

    record: ImageRecord
    rank: int
    scores: str
    caption: str
    tags: str
    file: Path | None


def tiles_of_hits(
    collection: AnyCollection, result: SearchResult, language: str
) -> tuple[Tile, ...]:
    """The hits of a search as tiles."""
    lines = [scores_line(hit.score, result.unit, hit.contributions) for hit in result.hits]
    matched = [hit.contributions.caption for hit in result.hits]
    return _tiles(collection, [hit.document for hit in result.hits], language, lines, matched)


def tiles_of_documents(
    collection: AnyCollection,
    documents: Sequence[Document],
    language: str,
    scores: Sequence[float] = (),
) -> tuple[Tile, ...]:
    """Images without a search; each may have a score."""
    lines = [f"{score:.3f}" for score in scores] or [""] * len(documents)
    return _tiles(collection, documents, language, lines, [None] * len(documents))


def _tiles(
    collection: AnyCollection,
    documents: Sequence[Document],
    language: str,
    lines: Sequence[str],
    matched: Sequence[Caption | None],
) -> tuple[Tile, ...]:
    files = tile_files(collection, [one.record for one in documents])
    rows = zip(documents, lines, matched, files, strict=True)
    return tuple(
        Tile(
            one.record,
            rank,
            line,
            caption_for(language, one.captions, caption),
            tags_for(language, one.tags),
            file,
        )
        for rank, (one, line, caption, file) in enumerate(rows, start=1)
    )


def scores_line(score: float, unit: Unit, why: Contributions) -> str:
    """The fused score and the scores of CM and CL, a dash where one is missing."""
    return f"{score_text(score, unit)}   CM {_number(why.cm)}   CL {_number(why.cl)}"


def caption_for(language: str, captions: Sequence[Caption], matched: Caption | None) -> str:
    """The caption to show: in `language` if there is one, and among these the matched one."""
    candidates = [matched, *captions] if matched else list(captions)
    in_language = [one for one in candidates if one.language == language]
    best = next(iter(in_language or candidates), None)
    return printable(best.text) if best else ""


def tags_for(language: str, tags: Sequence[Tag]) -> str:
    """The tags with the highest confidence that have a name in `language`, or any if none has."""
    in_language = [tag for tag in tags if tag.concept or tag.language == language] or tags
    names = (concepts.label_of(tag.concept, tag.label, language) for tag in in_language)
    labels = dict.fromkeys(printable(name) for name in names)
    return " · ".join(list(labels)[:MAX_TAGS])


def draw(tiles: Sequence[Tile], texts: Texts, place: str, on_open: Callable[[str], None]) -> None:
    """Draw tiles in a container named `place`; the whole of each image is a button."""
    with st.container(key=place):
        for tile in tiles:
            _draw_tile(tile, texts, place, on_open)


def _draw_tile(tile: Tile, texts: Texts, place: str, on_open: Callable[[str], None]) -> None:
    """Draw one tile. Its key gives the style sheet the shape and whether it has a caption."""
    name = f"{place}_{tile.rank}"
    shape = ratio_bucket(tile.record.width, tile.record.height)
    with st.container(key=f"tile_{name}_r{shape:03}{'_captioned' if tile.caption else ''}"):
        if tile.file is None:
            st.container(key=f"gone_{name}").text(texts.unreadable)
        else:
            st.image(str(tile.file), width="stretch")
        st.button(
            texts.open_image.format(rank=tile.rank),
            key=f"open_{name}",
            on_click=on_open,
            args=(tile.record.id,),
        )
        for line in filter(None, (tile.caption, tile.scores, tile.tags)):
            st.text(line)


def _number(score: float | None) -> str:
    return "–" if score is None else f"{score:.3f}"
