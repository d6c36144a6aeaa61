"""The large view: one image with all its metadata, near-duplicates and similar images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import streamlit as st

from capsearch.engine.duplicates import near_duplicates
from capsearch.engine.errors import CapsearchError
from capsearch.engine.records import Caption, Hit, ImageRecord, Query, Tag
from capsearch.ui.output.terminal import human_bytes, printable
from capsearch.ui.texts import NAMES, Texts
from capsearch.ui.web import file_actions, grid, session
from capsearch.ui.web.images import LARGE_EDGE, image_file
from capsearch.ui.web.library import Library

NEIGHBOURS = 8


@dataclass(frozen=True, slots=True)
class View:
    """Context of the large view: everything it shows besides the selected image."""

    library: Library
    texts: Texts
    language: str  # of the page
    hits: Mapping[str, Hit]  # of the current search, by image id
    order: Sequence[str]  # image ids of the grid, for next and previous


def show(view: View) -> None:
    """Open the large view over the page, for the image selected in the session."""
    dialog = st.dialog(view.texts.image, width="large", on_dismiss=session.close_image)
    dialog(_body)(view)


def _body(view: View) -> None:
    """The dialog's content; a click inside reruns only this function, not the page."""
    image_id: str | None = st.session_state["selected"]
    if image_id is None:  # a button of the dialog has started another search
        st.rerun()
    record = view.library.collection.catalog.images([image_id]).get(image_id)
    if record is None:
        st.warning(view.texts.unknown_image)
        return
    session.write_view(image_id)
    _turn_pages(view, image_id)
    image, facts = st.columns([5, 3], gap="medium")
    with image:
        _image(view, record)
    with facts.container(key="facts", gap=None):
        _facts(view, record)
    _neighbours(view, image_id)


def _turn_pages(view: View, image_id: str) -> None:
    if image_id not in view.order:
        return
    at = view.order.index(image_id)
    with st.container(horizontal=True):
        for label, key, other in (
            (view.texts.previous, "Left", at - 1),
            (view.texts.next, "Right", at + 1),
        ):
            exists = 0 <= other < len(view.order)
            st.button(
                label,
                key=f"turn_{key}",
                shortcut=key,
                disabled=not exists,
                on_click=session.open_image,
                args=(view.order[other] if exists else image_id,),
            )


def _image(view: View, record: ImageRecord) -> None:
    file = image_file(view.library.collection, record.id, LARGE_EDGE)
    with st.container(key="large"):
        if file is None:
            st.text(view.texts.unreadable)
        else:
            st.image(str(file), width="stretch")


def _facts(view: View, record: ImageRecord) -> None:
    catalog, texts = view.library.collection.catalog, view.texts
    hit = view.hits.get(record.id)
    if hit is not None:
        _field(texts.score, grid.scores_line(hit.score, hit.contributions))
    _captions(texts, catalog.captions([record.id]).get(record.id, ()))
    _tags(texts, catalog.tags([record.id]).get(record.id, ()))
    size = f"{record.width} × {record.height}, {human_bytes(record.size_bytes)}, {record.format}"
    _field(texts.size, size)
    if record.taken_at is not None:
        _field(texts.taken, record.taken_at.strftime("%Y-%m-%d %H:%M"))
    _field(texts.files, "\n".join(printable(path) for path in record.paths))
    file_actions.show(texts, view.library.collection, record)
    st.space("small")
    st.button(texts.find_similar, on_click=session.search_like, args=(record.id,))


def _captions(texts: Texts, captions: Sequence[Caption]) -> None:
    st.caption(texts.captions)
    if not captions:
        st.text(texts.no_captions)
    for at, caption in enumerate(captions):
        st.text(printable(caption.text))
        language = NAMES.get(caption.language, caption.language)
        by = f"{texts.by_model}: " if caption.generated else ""
        source = caption.source.removeprefix("model:")
        st.container(key=f"quiet_caption_{at}").text(printable(f"{language} · {by}{source}"))


def _tags(texts: Texts, tags: Sequence[Tag]) -> None:
    if tags:
        _field(texts.tags, " · ".join(printable(_tag(tag)) for tag in tags))


def _tag(tag: Tag) -> str:
    return tag.label if tag.confidence >= 1 else f"{tag.label} {tag.confidence:.2f}"


def _field(label: str, value: str) -> None:
    st.caption(label)
    st.text(value)


def _neighbours(view: View, image_id: str) -> None:
    """Near-duplicates, then similar images that are not near-duplicates."""
    try:
        engine = view.library.engine()
        copies = near_duplicates(engine.images, image_id, limit=NEIGHBOURS)
        found = engine.search(Query(like=image_id, mode="cm", limit=2 * NEIGHBOURS + 1)).hits
    except CapsearchError as error:
        st.text(printable(str(error)))
        return
    shown = {image_id, *(one.image_id for one in copies)}
    similar = [hit for hit in found if hit.image_id not in shown][:NEIGHBOURS]
    _strip(view, view.texts.duplicates, "copies", [(one.image_id, one.score) for one in copies])
    _strip(view, view.texts.similar, "similar", [(hit.image_id, hit.score) for hit in similar])


def _strip(view: View, title: str, place: str, scored: Sequence[tuple[str, float]]) -> None:
    if not scored:
        return
    st.caption(title)
    ids, scores = [one for one, _ in scored], [score for _, score in scored]
    tiles = grid.tiles_of_ids(view.library.collection, ids, view.language, scores)
    bare = [replace(tile, caption="", tags="") for tile in tiles]
    grid.draw(bare, view.texts, f"grid_strip_{place}", session.open_image)
