"""Text of unknown encoding: what people's editors and cameras in China and Japan leave behind."""

from __future__ import annotations

import codecs
import re

from capsearch.encoders.languages import KANA

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HALF_WIDTH = re.compile("[\uff61-\uff9f]")


def read_text(data: bytes) -> str:
    """The text, by its byte order mark, as UTF-8, Shift-JIS, GB 18030 or Latin-1.

    GB 18030 accepts nearly every Shift-JIS text as rare characters, so Shift-JIS goes first
    and is believed when it yields kana that are not mostly half-width (what GB bytes become).
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    text = _strictly(data, "utf-8")
    if text is not None:
        return text
    japanese = _strictly(data, "shift_jis")
    if japanese is not None and len(KANA.findall(japanese)) > len(_HALF_WIDTH.findall(japanese)):
        return japanese
    chinese = _strictly(data, "gb18030")
    return data.decode("latin-1") if chinese is None else chinese


def _strictly(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        return None
