"""The large view: one image with what is known of it, its near-duplicates and similar images.

Captions are in the reader's language first. Whoever may index accepts, corrects or rejects what a
model wrote. A tag is a button that searches for images with it. The original can be downloaded,
and shown in its folder by whoever owns this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import streamlit as st

from capsearch.encoders.text import concepts
from capsearch.engine.errors import CapsearchError, IndexBusy
from capsearch.engine.evidence import SOURCES
from capsearch.engine.query import Query
from capsearch.engine.records import (
    GENERATED,
    HAND,
    TAKEN_FROM,
    Caption,
    Document,
    Hit,
    ImageRecord,
    Tag,
    Unit,
)
from capsearch.library import Library
from capsearch.ui.values import human_bytes, printable
from capsearch.ui.web import access, grid, session
from capsearch.ui.web.images import (
    LARGE_EDGE,
    MAX_DOWNLOAD_BYTES,
    mime_type,
    original,
    read_original,
    record_file,
)
from capsearch.ui.web.settings import SECRETS
from capsearch.ui.web.texts import NAMES, Texts

MAX_TAGS = 24
_FAILED = "review_failed"  # session: why the last click changed nothing


def in_language_first(captions: Sequence[Caption], language: str) -> list[Caption]:
    """Captions in a language before others; otherwise in their order."""
    return sorted(captions, key=lambda caption: caption.language != language)


def author(texts: Texts, caption: Caption) -> str:
    """Who wrote a caption: where a person's was found, or the model and its probability."""
    if caption.generated:
        name = caption.source.removeprefix(GENERATED)
        return f"{texts.by_model}: {name} · {caption.confidence:.0%}"
    return texts.by_hand if caption.source == HAND else caption.source


def _captions(library: Library, texts: Texts, language: str, document: Document) -> None:
    st.caption(texts.captions)
    if not document.captions:
        st.text(texts.no_captions)
    for at, caption in enumerate(in_language_first(document.captions, language)):
        st.text(printable(caption.text))
        named = NAMES.get(caption.language, caption.language)
        line = printable(f"{named} · {author(texts, caption)}")
        st.container(key=f"quiet_caption_{at}").text(line)
        if caption.generated and access.may_index():
            _review(library, texts, document.record.id, caption, at)
    failed = st.session_state.pop(_FAILED, None)
    if failed is not None:
        st.warning(texts.already_indexing if isinstance(failed, IndexBusy) else texts.not_reviewed)


def _review(library: Library, texts: Texts, image_id: str, caption: Caption, at: int) -> None:
    """One click to accept or reject; correcting opens a field with the text."""
    key = f"{image_id}_{at}"
    with st.container(horizontal=True, key=f"review_{at}"):
        for label, icon, name, action in (
            (texts.accept, ":material/check:", "accept", library.accept),
            (texts.reject, ":material/close:", "reject", library.reject),
        ):
            st.button(
                label,
                icon=icon,
                key=f"{name}_{key}",
                on_click=_attempt,
                args=(partial(action, image_id, caption),),
            )
        with st.popover(texts.correct, icon=":material/edit:"):
            field = f"corrected_{key}_{hash(caption)}"
            st.text_area(texts.correct, caption.text, key=field, label_visibility="collapsed")
            st.button(
                texts.save,
                key=f"correct_{key}",
                on_click=lambda: _attempt(
                    lambda: library.correct(image_id, caption, st.session_state[field])
                ),
            )


def _attempt(change: Callable[[], None]) -> None:
    """Rights are asked again: a session may outlive a page that was drawn with them."""
    if not access.may_index():
        return
    try:
        change()
    except CapsearchError as error:
        st.session_state[_FAILED] = error


def _tags(texts: Texts, language: str, tags: Sequence[Tag]) -> None:
    if not tags:
        return
    st.caption(texts.tags)
    with st.container(horizontal=True, key="tags_of_image"):
        for at, tag in enumerate(tags[:MAX_TAGS]):
            name = concepts.label_of(tag.concept, tag.label, language)
            sure = "" if tag.confidence >= 1 else f" {tag.confidence:.0%}"
            st.button(
                _plain(f"{name}{sure}"),
                key=f"tag_{at}",
                help=_plain(texts.by_model if tag.generated else tag.source),
                on_click=session.search_tag,
                args=(concepts.label_of(tag.concept, tag.label, "en"),),
            )


def _plain(text: str) -> str:
    """A label of a button is Markdown: what may be markup is written as what it looks like."""
    return "".join(
        f"\\{char}" if char in "\\`*_{}[]()#+-.!:|<>~$^" else char for char in printable(text)
    )


# sys.platform -> the program that opens a folder
_PROGRAMS: Mapping[str, str] = {"darwin": "open", "win32": "explorer"}
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def file_manager() -> str | None:
    """The program that opens folders; None where there is none, or no desktop."""
    program = _PROGRAMS.get(sys.platform, "xdg-open")
    desktop = sys.platform in _PROGRAMS or any(os.environ.get(name) for name in _DISPLAYS)
    return shutil.which(program) if desktop else None


def open_folder(path: Path) -> bool:
    """Open the folder of a file; False if that cannot be done."""
    program = file_manager()
    if program is None:
        return False
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    try:
        subprocess.Popen(
            [program, str(path.absolute().parent)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    return True


def show_file_actions(texts: Texts, library: Library, record: ImageRecord) -> None:
    """Draw the buttons. Whoever does not own this machine gets the path to copy instead."""
    path = original(library, record)
    if path is None:
        st.caption(texts.original_gone)
        return
    st.space("small")
    with st.container(horizontal=True, key="file_actions"):
        st.download_button(
            texts.download_original,
            partial(read_original, library, record),  # called when it is clicked
            file_name=printable(path.name),
            mime=mime_type(path),
            on_click="ignore",
            icon=":material/download:",
            disabled=record.size_bytes > MAX_DOWNLOAD_BYTES,
        )
        if access.owns_this_machine() and file_manager() is not None:
            _folder_button(texts, path)
        else:
            with st.popover(texts.copy_path, icon=":material/content_copy:"):
                st.code(printable(str(path)), language=None, wrap_lines=True)


def _folder_button(texts: Texts, path: Path) -> None:
    clicked = st.button(texts.show_in_folder, icon=":material/folder_open:")
    if clicked and not open_folder(path):
        st.code(printable(str(path)), language=None, wrap_lines=True)


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
    document = view.library.lookup([image_id]).get(image_id)
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
    file = record_file(view.library, record, LARGE_EDGE)
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
    _captions(view.library, texts, view.language, document)
    _tags(texts, view.language, document.tags)
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
    show_file_actions(texts, view.library, record)
    st.space("small")
    st.button(texts.find_similar, on_click=session.search_like, args=(record.id,))


def _evidence(texts: Texts, log_odds: Mapping[str, float]) -> None:
    """What each source of evidence adds to the log-odds of relevance."""
    lines = [
        f"{signed(log_odds[name])}  {getattr(texts, f'evidence_{name}')}"
        for name in (*SOURCES, "prior")
        if name in log_odds
    ]
    if lines:
        _field(texts.evidence, "\n".join(lines))


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
        copies = view.library.near_duplicates(image_id, limit=NEIGHBOURS)
        hits = view.library.search(Query(like=image_id, mode="cm", limit=2 * NEIGHBOURS + 1))
    except CapsearchError as error:
        st.text(printable(str(error)))
        return
    shown = {image_id, *(document.record.id for document, _ in copies)}
    similar = [(hit.document, hit.score) for hit in hits if hit.image_id not in shown]
    for title, place, neighbours in (
        (view.texts.duplicates, "copies", copies),
        (view.texts.similar, "similar", similar[:NEIGHBOURS]),
    ):
        _strip(view, title, place, neighbours)


def _strip(view: View, title: str, place: str, scored: Sequence[tuple[Document, float]]) -> None:
    if not scored:
        return
    st.caption(title)
    documents, scores = zip(*scored, strict=True)
    tiles = grid.tiles_of_documents(view.library, documents, view.language, scores)
    bare = [replace(tile, caption="", tags="") for tile in tiles]
    grid.draw(bare, view.texts, f"grid_strip_{place}", session.open_image)
