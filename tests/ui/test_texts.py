"""The page's words: the same promises in every language."""

from __future__ import annotations

from dataclasses import fields
from string import Formatter

import pytest

from capsearch.engine.records import LANGUAGES
from capsearch.ui.texts import NAMES, TEXTS, Texts, reader_language


def blanks(text: str) -> set[str | None]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_the_page_speaks_every_language_it_searches_in() -> None:
    assert set(TEXTS) == set(NAMES) == set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("field", [field.name for field in fields(Texts)])
def test_every_text_is_there_with_the_same_blanks(language: str, field: str) -> None:
    words, english = getattr(TEXTS[language], field), getattr(TEXTS["en"], field)
    assert words
    if isinstance(english, str):
        assert blanks(words) == blanks(english)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_drop_zones_words_are_safe_inside_css(language: str) -> None:
    assert not set('"\\\n<') & set(TEXTS[language].drop_image)


@pytest.mark.parametrize(
    ("locale", "language"),
    [
        ("zh-Hant-TW", "zh"),
        ("ja", "ja"),
        ("en_GB", "en"),
        ("de-DE", "en"),
        (None, "en"),
        ("", "en"),
    ],
)
def test_the_browsers_locale_chooses_the_language(locale: str | None, language: str) -> None:
    assert reader_language(locale) == language
