"""The large view: one image with all its metadata, near-duplicates and similar images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import streamlit as st

from capsearch.engine.duplicates import near_duplicates
from capsearch.engine.errors import CapsearchError
from capsearch.engine.query import Query
from capsearch.engine.records import TAKEN_FROM, Document, Hit, ImageRecord, Unit
from capsearch.ui.output.terminal import human_bytes, printable
from capsearch.ui.texts import Texts
from capsearch.ui.web import descriptions, file_actions, grid, session
from capsearch.ui.web.images import LARGE_EDGE, record_file
from capsearch.ui.web.library import Library

NEIGHBOURS = 8


@dataclass(frozen=True, slots=True)
class View:
    """Context of the large view: everything it shows besides the selected image."""

    library: Library
    texts: Texts
    language: str  # of the page
    hits: Mapping[str, Hit]  # of the current search, by image id
    unit: Unit  # of their scores
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
    document = view.library.collection.backend.lookup([image_id]).get(image_id)
    if document is None:
        st.warning(view.texts.unknown_image)
        return
    session.write_view(image_id)
    _turn_pages(view, image_id)
    image, facts = st.columns([5, 3], gap="medium")
    with image:
        _image(view, document.record)
    with facts.container(key="facts", gap=None):
        _facts(view, document)
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
    file = record_file(view.library.collection, record, LARGE_EDGE)
    with st.container(key="large"):
        if file is None:
            st.text(view.texts.unreadable)
        else:
            st.image(str(file), width="stretch")


def _facts(view: View, document: Document) -> None:
    record, texts = document.record, view.texts
    hit = view.hits.get(record.id)
    if hit is not None:
        _field(texts.score, grid.scores_line(hit.score, view.unit, hit.contributions))
        _evidence(texts, hit.contributions.log_odds)
    descriptions.show(view.library.collection, texts, view.language, document)
    size = f"{record.width} × {record.height}, {human_bytes(record.size_bytes)}, {record.format}"
    _field(texts.size, size)
    if record.taken_at is not None:
        source = document.metadata.get(TAKEN_FROM, "")
        taken = record.taken_at.strftime("%Y-%m-%d %H:%M")
        _field(texts.taken, f"{taken} ({source})" if source else taken)
    fields = {k: v for k, v in document.metadata.items() if k != TAKEN_FROM}
    if fields:
        _field(texts.metadata, "\n".join(printable(f"{k}: {v}") for k, v in fields.items()))
    _field(texts.files, "\n".join(printable(path) for path in record.paths))
    file_actions.show(texts, view.library.collection, record)
    st.space("small")
    st.button(texts.find_similar, on_click=session.search_like, args=(record.id,))


def _evidence(texts: Texts, log_odds: Mapping[str, float]) -> None:
    """What each source adds to the log-odds of relevance, in the order of `evidence_labels`."""
    lines = [
        f"{signed(log_odds[name])}  {label}"
        for name, label in evidence_labels(texts).items()
        if name in log_odds
    ]
    if lines:
        _field(texts.evidence, "\n".join(lines))


def evidence_labels(texts: Texts) -> Mapping[str, str]:
    """The sources of evidence in the language of the page."""
    return {
        "image": texts.evidence_image,
        "caption": texts.evidence_caption,
        "generated": texts.evidence_generated,
        "words": texts.evidence_words,
        "generated_words": texts.evidence_generated_words,
        "tag": texts.evidence_tag,
        "prior": texts.evidence_prior,
    }


def signed(value: float) -> str:
    """A sign, then one decimal; padded with spaces as wide as a digit, so that columns align.

    The padding follows the sign because st.text strips leading spaces.
    """
    number = f"{abs(value):.1f}".rjust(4, "\N{FIGURE SPACE}")
    return ("\N{MINUS SIGN}" if value < 0 else "+") + number


def _field(label: str, value: str) -> None:
    st.caption(label)
    st.text(value)


def _neighbours(view: View, image_id: str) -> None:
    """Near-duplicates, then similar images that are not near-duplicates."""
    try:
        engine = view.library.engine()
        copies = near_duplicates(engine.backend, image_id, limit=NEIGHBOURS)
        found = engine.search(Query(like=image_id, mode="cm", limit=2 * NEIGHBOURS + 1)).hits
    except CapsearchError as error:
        st.text(printable(str(error)))
        return
    shown = {image_id, *(one.document.record.id for one in copies)}
    similar = [hit for hit in found if hit.image_id not in shown][:NEIGHBOURS]
    for title, place, neighbours in (
        (view.texts.duplicates, "copies", [(one.document, one.score) for one in copies]),
        (view.texts.similar, "similar", [(hit.document, hit.score) for hit in similar]),
    ):
        _strip(view, title, place, neighbours)


def _strip(view: View, title: str, place: str, scored: Sequence[tuple[Document, float]]) -> None:
    if not scored:
        return
    st.caption(title)
    documents, scores = [one for one, _ in scored], [score for _, score in scored]
    tiles = grid.tiles_of_documents(view.library.collection, documents, view.language, scores)
    bare = [replace(tile, caption="", tags="") for tile in tiles]
    grid.draw(bare, view.texts, f"grid_strip_{place}", session.open_image)
