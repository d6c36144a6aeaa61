"""Decoding text of unknown encoding, as editors and cameras in China and Japan write it."""

from __future__ import annotations

import codecs
import re

from capsearch.encoders.languages import KANA

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HALF_WIDTH = re.compile("[\uff61-\uff9f]")


def read_text(data: bytes) -> str:
    """The text, decoded by its byte order mark, or as UTF-8, Shift-JIS, GB 18030 or Latin-1.

    GB 18030 decodes nearly every Shift-JIS text into rare characters, so Shift-JIS is tried
    first. It is accepted when the result has more full-width kana than half-width ones, because
    GB 18030 text decoded as Shift-JIS consists mostly of half-width kana.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    text = _decoded(data, "utf-8")
    if text is not None:
        return text
    japanese = _decoded(data, "shift_jis")
    if japanese is not None and len(KANA.findall(japanese)) > len(_HALF_WIDTH.findall(japanese)):
        return japanese
    chinese = _decoded(data, "gb18030")
    return data.decode("latin-1") if chinese is None else chinese


def _decoded(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None
