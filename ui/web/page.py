"""The search page. Streamlit runs this file from top to bottom at every click.

It sends the query to the search engine and draws the hits; ranking, filtering and paging
happen in the engine.
"""

from __future__ import annotations

import streamlit as st

from capsearch.engine.errors import CapsearchError
from capsearch.ui.web import access, controls, indexing, results, session, settings
from capsearch.ui.web.library import Library, available_indexes, open_library
from capsearch.ui.web.style import stylesheet
from capsearch.ui.web.texts import TEXTS


def main() -> None:
    """Run the page once."""
    watch = settings.Stopwatch()
    st.set_page_config(page_title="capsearch", page_icon=":material/image_search:", layout="wide")
    if not access.admitted():
        return
    collections = available_indexes()
    session.begin(tuple(collections))
    language: str = st.session_state["interface"]
    texts, where = TEXTS[language], collections[st.session_state["collection"]]
    st.html(stylesheet(texts.drop_image))
    opened: Library | CapsearchError
    try:
        opened = open_library(where)
    except CapsearchError as error:
        opened = error
    library = opened if isinstance(opened, Library) else None
    indexing.header(texts, tuple(collections), where, library)
    upload = controls.search_box(texts)
    session.remember()
    cutoff = controls.toolbar(texts, library.facets() if library else None)
    state = session.read()
    session.write_url(state, tuple(collections))
    watch.lap("controls")
    result = None
    if isinstance(opened, Library):
        result = results.show(results.Request(opened, texts, language, state, upload), watch)
    else:
        results.explain(texts, opened)
    unit, used = (result.unit, result.min_score) if result else ("score", None)
    controls.cutoff(cutoff, texts, unit, used)


if __name__ == "__main__":
    main()
