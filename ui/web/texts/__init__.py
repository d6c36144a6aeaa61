"""The texts of the search page, one module a language.

A missing translation is a type error: every language has to fill every field of `Texts`.
"""

from __future__ import annotations

from collections.abc import Mapping

from capsearch.ui.web.texts.en import EN
from capsearch.ui.web.texts.fields import Texts
from capsearch.ui.web.texts.ja import JA
from capsearch.ui.web.texts.zh import ZH

__all__ = ["NAMES", "TEXTS", "Texts", "language_of_locale"]

NAMES: Mapping[str, str] = {"en": "English", "zh": "中文", "ja": "日本語"}
TEXTS: Mapping[str, Texts] = {"en": EN, "zh": ZH, "ja": JA}


def language_of_locale(locale: str | None) -> str:
    """The page language for a browser locale such as "zh-Hant-TW"; English for all others."""
    language = (locale or "").replace("_", "-").split("-")[0].lower()
    return language if language in TEXTS else "en"
