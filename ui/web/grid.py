"""The grid of images. Names, captions and tags are drawn with st.text: never as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from capsearch.engine.records import Caption, Contributions, Hit, ImageRecord, Tag
from capsearch.indexer.embedded.collection import Collection
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


def tiles_of_hits(collection: Collection, hits: Sequence[Hit], language: str) -> tuple[Tile, ...]:
    """Hits as tiles; one whose image has just been removed is left out."""
    by_id = {hit.image_id: hit for hit in hits}
    return _tiles(
        collection,
        list(by_id),
        language,
        scores={one: scores_line(hit.score, hit.contributions) for one, hit in by_id.items()},
        matched={one: hit.contributions.caption for one, hit in by_id.items()},
    )


def tiles_of_ids(
    collection: Collection, image_ids: Sequence[str], language: str, scores: Sequence[float] = ()
) -> tuple[Tile, ...]:
    """Images by id, without a search; each may have a score."""
    lines = {one: f"{score:.3f}" for one, score in zip(image_ids, scores, strict=False)}
    return _tiles(collection, image_ids, language, lines, {})


def _tiles(
    collection: Collection,
    image_ids: Sequence[str],
    language: str,
    scores: Mapping[str, str],
    matched: Mapping[str, Caption | None],
) -> tuple[Tile, ...]:
    """Tiles for many images, with one catalog lookup for each kind of record."""
    records = collection.catalog.images(image_ids)
    captions, tags = collection.catalog.captions(image_ids), collection.catalog.tags(image_ids)
    known = [one for one in image_ids if one in records]
    return tuple(
        Tile(
            records[one],
            rank,
            scores.get(one, ""),
            caption_for(language, captions.get(one, ()), matched.get(one)),
            tags_for(language, tags.get(one, ())),
            file,
        )
        for rank, (one, file) in enumerate(
            zip(known, tile_files(collection, known), strict=True), start=1
        )
    )


def scores_line(score: float, why: Contributions) -> str:
    """The fused score and the scores of CM and CL, a dash where one is missing."""
    return f"{score:.3f}   CM {_number(why.cm)}   CL {_number(why.cl)}"


def caption_for(language: str, captions: Sequence[Caption], matched: Caption | None) -> str:
    """The caption to show: in `language` if there is one, and among these the matched one."""
    candidates = [matched, *captions] if matched else list(captions)
    in_language = [one for one in candidates if one.language == language]
    best = next(iter(in_language or candidates), None)
    return printable(best.text) if best else ""


def tags_for(language: str, tags: Sequence[Tag]) -> str:
    """The tags with the highest confidence in `language`, or in any if it has none."""
    in_language = [tag for tag in tags if tag.language == language] or tags
    labels = dict.fromkeys(printable(tag.label) for tag in in_language)
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
