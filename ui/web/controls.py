"""The search box, the upload field, and the popovers for ranking, filters and history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.uploaded_file_manager import UploadedFile

from capsearch.encoders.images.open import HEIF_SUFFIXES, IMAGE_SUFFIXES
from capsearch.encoders.text import concepts
from capsearch.engine.records import LANGUAGES, MODES, Facet, Facets, Unit
from capsearch.ui.values import printable
from capsearch.ui.web import session
from capsearch.ui.web.session import MAX_TEXT
from capsearch.ui.web.texts import NAMES, Texts

UPLOAD_TYPES = tuple(sorted(suffix[1:] for suffix in IMAGE_SUFFIXES | HEIF_SUFFIXES))
OLDEST = date(1826, 1, 1)  # the year of the oldest surviving photograph


def search_box(texts: Texts) -> UploadedFile | None:
    """Draw the search box and the upload field; returns the uploaded image."""
    with st.container(key="search_row"):
        text, image = st.columns([5, 2], vertical_alignment="center")
        text.text_input(
            texts.search,
            key="text",
            placeholder=texts.placeholder,
            max_chars=MAX_TEXT,
            label_visibility="collapsed",
            icon=":material/search:",
        )
        return image.file_uploader(
            texts.drop_image,
            type=UPLOAD_TYPES,
            key=f"upload_{st.session_state['uploads']}",
            label_visibility="collapsed",
        )


def toolbar(texts: Texts, facets: Facets | None) -> DeltaGenerator:
    """Draw mode, ranking, filters and history in one line that wraps.

    Returns the place of the cut-off, which has the unit of the scores: see `cutoff`.
    """
    with st.container(horizontal=True, vertical_alignment="center", key="toolbar"):
        st.segmented_control(
            texts.mode,
            MODES,
            key="mode",
            format_func=dict(zip(MODES, texts.modes, strict=True)).__getitem__,
            label_visibility="collapsed",
        )
        with st.popover(texts.ranking, icon=":material/tune:"):
            place = _ranking(texts)
        if facets is not None:
            with st.popover(_filters_label(texts), icon=":material/filter_list:"):
                _filters(texts, facets)
        _history(texts)
        st.toggle(texts.select_mode, key="selecting")
    return place


def _ranking(texts: Texts) -> DeltaGenerator:
    st.caption(texts.mode_help)
    st.checkbox(texts.tuned_weight, key="tuned")
    st.slider(texts.weight, 0.0, 1.0, step=0.01, key="weight", disabled=st.session_state["tuned"])
    place = st.container()
    st.selectbox(
        texts.query_language,
        LANGUAGES,
        index=None,
        key="language",
        placeholder=texts.automatic,
        format_func=NAMES.__getitem__,
    )
    return place


def cutoff(place: DeltaGenerator, texts: Texts, unit: Unit, used: float | None) -> None:
    """Draw the least score to show; called after the search, which tells the unit.

    While the model's own cut-off is used, the slider shows it and cannot be moved.
    """
    place.checkbox(texts.default_cutoff, key="default_cutoff")
    default: bool = st.session_state["default_cutoff"]
    if default:
        st.session_state["min_score"] = min(max(used or 0.0, 0.0), 1.0)
    place.slider(
        texts.min_score,
        0.0,
        1.0,
        step=0.01,
        key="min_score",
        format="percent" if unit == "probability" else "%.2f",
        disabled=default,
    )


def _filters_label(texts: Texts) -> str:
    count = sum(bool(st.session_state.get(name)) for name in session.FILTERS)
    return f"{texts.filters} ({count})" if count else texts.filters


def _filters(texts: Texts, facets: Facets) -> None:
    """Choices show how many images they match; those in the URL are listed even with none."""
    _choose_many(texts, texts.tags, "tags", facets.tags)
    _choose_many(texts, texts.folders, "folders", facets.folders)
    earliest, latest = st.columns(2)
    for column, label, key in (
        (earliest, texts.taken_from, "taken_from"),
        (latest, texts.taken_until, "taken_until"),
    ):
        column.date_input(
            label, key=key, value=None, min_value=OLDEST, max_value=date(2100, 1, 1),
            format="YYYY-MM-DD",
        )  # fmt: skip
    for label, key, names in (
        (texts.caption_language, "caption_language", NAMES),
        (texts.written_by, "written_by", {"people": texts.people, "models": texts.models}),
    ):
        st.selectbox(
            label,
            tuple(names),
            index=None,
            key=key,
            placeholder=texts.anything,
            format_func=names.__getitem__,
        )
    st.button(texts.reset_filters, on_click=session.reset_filters)


def _choose_many(texts: Texts, label: str, key: str, facets: Sequence[Facet]) -> None:
    counts = {facet.value: facet.images for facet in facets}
    language: str = st.session_state["interface"]
    names: dict[str, str] = {
        facet.value: concepts.label_of(facet.concept, facet.value, language) for facet in facets
    }

    def shown(value: str) -> str:
        return names.get(value, value)

    options = list(dict.fromkeys([*counts, *st.session_state[key]]))
    if options:
        st.multiselect(
            label,
            options,
            key=key,
            placeholder=texts.anything,
            format_func=lambda value: f"{printable(_short(shown(value)))} ({counts.get(value, 0)})",
        )


def _short(value: str) -> str:
    """The last two names of a folder's path; a tag unchanged."""
    parts = Path(value).parts
    return str(Path(*parts[-2:])) if Path(value).is_absolute() and len(parts) > 2 else value


def _history(texts: Texts) -> None:
    current = (st.session_state["text"] or "").strip()
    earlier = [text for text in st.session_state["history"] if text != current]
    if earlier:
        st.selectbox(
            texts.recent_searches,
            earlier,
            key="recent",
            index=None,
            placeholder=texts.recent_searches,
            label_visibility="collapsed",
            on_change=session.repeat,
            width=220,
        )
