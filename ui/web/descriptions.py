"""Captions and tags in the large view: in the reader's language, and who wrote them.

A generated caption can be accepted, corrected or rejected by whoever may index: this writes to the
collection. A tag is a button that searches for images with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from capsearch.encoders import concepts
from capsearch.engine.errors import CapsearchError, IndexBusy
from capsearch.engine.records import GENERATED, Caption, Document, Tag
from capsearch.indexer import reviewing
from capsearch.indexer.store import HAND
from capsearch.ui.opening import AnyCollection
from capsearch.ui.output.terminal import printable
from capsearch.ui.texts import NAMES, Texts
from capsearch.ui.web import access, session

MAX_TAGS = 24
_FAILED = "review_failed"  # session: why the last click changed nothing


def show(collection: AnyCollection, texts: Texts, language: str, document: Document) -> None:
    """Draw both; `language` is that of the page."""
    _captions(collection, texts, language, document)
    _tags(texts, language, document.tags)


def in_language_first(captions: Sequence[Caption], language: str) -> list[Caption]:
    """Captions in a language before others; otherwise in their order."""
    return sorted(captions, key=lambda one: one.language != language)


def author(texts: Texts, caption: Caption) -> str:
    """Who wrote a caption: where a person's was found, or the model and its probability."""
    if caption.generated:
        name = caption.source.removeprefix(GENERATED)
        return f"{texts.by_model}: {name} · {caption.confidence:.0%}"
    return texts.by_hand if caption.source == HAND else caption.source


def _captions(collection: AnyCollection, texts: Texts, language: str, document: Document) -> None:
    st.caption(texts.captions)
    if not document.captions:
        st.text(texts.no_captions)
    for at, caption in enumerate(in_language_first(document.captions, language)):
        st.text(printable(caption.text))
        named = NAMES.get(caption.language, caption.language)
        line = printable(f"{named} · {author(texts, caption)}")
        st.container(key=f"quiet_caption_{at}").text(line)
        if caption.generated and access.may_index():
            _review(collection, texts, document.record.id, caption, at)
    failed = st.session_state.pop(_FAILED, None)
    if failed is not None:
        st.warning(texts.already_indexing if isinstance(failed, IndexBusy) else texts.not_reviewed)


def _review(
    collection: AnyCollection, texts: Texts, image_id: str, caption: Caption, at: int
) -> None:
    """One click to accept or reject; correcting opens a field with the text."""
    key = f"{image_id}_{at}"
    with st.container(horizontal=True, key=f"review_{at}"):
        for label, icon, name, action in (
            (texts.accept, ":material/check:", "accept", reviewing.accept),
            (texts.reject, ":material/close:", "reject", reviewing.reject),
        ):
            st.button(
                label,
                icon=icon,
                key=f"{name}_{key}",
                on_click=_attempt,
                args=(collection, partial(action, image_id=image_id, caption=caption)),
            )
        with st.popover(texts.correct, icon=":material/edit:"):
            field = f"corrected_{key}_{hash(caption)}"
            st.text_area(texts.correct, caption.text, key=field, label_visibility="collapsed")
            st.button(
                texts.save,
                key=f"correct_{key}",
                on_click=lambda: _attempt(
                    collection,
                    lambda opened: reviewing.correct(
                        opened, image_id, caption, st.session_state[field]
                    ),
                ),
            )


def _attempt(collection: AnyCollection, change: Callable[[AnyCollection], None]) -> None:
    """Rights are asked again: a session may outlive a page that was drawn with them."""
    if not access.may_index():
        return
    try:
        with collection.for_writing() as opened:
            change(opened)
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
        f"\\{one}" if one in "\\`*_{}[]()#+-.!:|<>~$^" else one for one in printable(text)
    )
