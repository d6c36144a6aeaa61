"""The page's texts: complete and consistent in every language."""

from __future__ import annotations

from dataclasses import fields
from string import Formatter

import pytest

from capsearch.engine.records import LANGUAGES
from capsearch.ui.web.texts import NAMES, TEXTS, Texts, language_of_locale


def placeholders(text: str) -> set[str | None]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_the_page_has_texts_in_every_language_it_searches_in() -> None:
    assert set(TEXTS) == set(NAMES) == set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("field", [field.name for field in fields(Texts)])
def test_every_text_exists_and_has_the_same_placeholders(language: str, field: str) -> None:
    text, english = getattr(TEXTS[language], field), getattr(TEXTS["en"], field)
    assert text
    if isinstance(english, str):
        assert placeholders(text) == placeholders(english)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_label_of_the_upload_field_is_safe_inside_css(language: str) -> None:
    assert not set('"\\\n<') & set(TEXTS[language].drop_image)


@pytest.mark.parametrize(
    ("language", "others"), [("en", "picture photo"), ("zh", "照片 图像"), ("ja", "写真 図")]
)
def test_there_is_one_word_for_an_image(language: str, others: str) -> None:
    all_texts = str(TEXTS[language]).lower()
    assert [other for other in others.split() if other in all_texts] == []


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
    assert language_of_locale(locale) == language
