"""Buttons of the large view for the image's original file: download, show in its folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import streamlit as st

from capsearch.engine.records import ImageRecord
from capsearch.ui.opening import AnyCollection
from capsearch.ui.output.terminal import printable
from capsearch.ui.texts import Texts
from capsearch.ui.web import access, file_manager
from capsearch.ui.web.originals import MAX_DOWNLOAD_BYTES, mime_type, original, read_original


def show(texts: Texts, collection: AnyCollection, record: ImageRecord) -> None:
    """Draw the buttons. Whoever does not own this machine gets the path to copy instead."""
    path = original(collection, record)
    if path is None:
        st.caption(texts.original_gone)
        return
    st.space("small")
    with st.container(horizontal=True, key="file_actions"):
        st.download_button(
            texts.download_original,
            partial(read_original, collection, record),  # called when it is clicked
            file_name=printable(path.name),
            mime=mime_type(path),
            on_click="ignore",
            icon=":material/download:",
            disabled=record.size_bytes > MAX_DOWNLOAD_BYTES,
        )
        if access.owns_this_machine() and file_manager.file_manager() is not None:
            _folder_button(texts, path)
        else:
            with st.popover(texts.copy_path, icon=":material/content_copy:"):
                st.code(printable(str(path)), language=None, wrap_lines=True)


def _folder_button(texts: Texts, path: Path) -> None:
    clicked = st.button(texts.show_in_folder, icon=":material/folder_open:")
    if clicked and not file_manager.open_folder(path):
        st.code(printable(str(path)), language=None, wrap_lines=True)
