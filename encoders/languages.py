"""What a text is before any model sees it: normalised, and known to be zh, ja or en."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_KANA = re.compile(r"[\u3040-\u30ff\u31f0-\u31ff]")
_HAN = re.compile(r"[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_SPACE = re.compile(r"\s+")
_BLANK = ("Cc", "Cs", "Zl", "Zp")  # Cs: half a character, as in undecodable file names

# Words that no Chinese sentence contains, though Chinese has the characters. 料理, 男性, 電車,
# 野菜 or 新幹線 are Chinese words too, so they are not here.
_JAPANESE_WORDS = re.compile(
    "(?<!打)野球(?![帝王])|(?<![電孩親種弟])子供(?![應給奉養])|飛行機(?![器械組構動會翼員])"
    "|(?<![全一各內内])部屋(?![子頂])|自動車(?![庫輛廂床])|食卓(?!越)|洗面所(?![用需有])"
    "|交差点|腕時計|時計台|砂浜|横浜|弁当|芝生|滑走路|駐車場|一軒家"
    "|(?:家族|航空|記念|集合)写真|写真(?:家|立)"
)
# Words that are Japanese when they stand alone, but may be a part of Chinese ones (麵包丁).
_JAPANESE_ALONE = frozenset(
    ("写真", "時計", "台所", "風船", "果物", "荷物", "屋根", "包丁", "試合", "朝食", "夕食", "夕日")
)
# Forms that Chinese in Hong Kong or by hand has beside those of Big5 and GB 2312.
_CHINESE_VARIANTS = frozenset("〇着脱税悦温没内床峰衞擡痩値躱廻菓")
# What Chinese sentences have and Japanese compounds of Han characters hardly do.
_CHINESE_GRAMMAR = frozenset("的了着著是在與和跟只個个們他她它把被很沒没这那")


def normalise(text: str) -> str:
    """NFKC, no control or zero-width characters, single spaces. The script stays as written."""
    visible = (" " if unicodedata.category(c) in _BLANK else c for c in text)
    # Zero-width characters go first: what stood on both sides of one may compose.
    kept = "".join(c for c in visible if unicodedata.category(c) != "Cf")
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", kept)).strip()


def detect(text: str) -> str:
    """The language a text is taken for: kana is ja, Han alone zh, everything else en.

    Statistical detectors call short Chinese Korean, so the script decides. Han alone counts as
    Japanese only where Chinese would not write it so: Chinese readers come first.
    """
    text = unicodedata.normalize("NFKC", text)
    if _KANA.search(text):
        return "ja"
    han = frozenset(_HAN.findall(text))
    if not han:
        return "en"
    return "ja" if _japanese(text, han) else "zh"


def _japanese(text: str, han: frozenset[str]) -> bool:
    """Whether text without kana is Japanese, by what the national character sets hold."""
    if not all(_in("shift_jis", c) for c in han):
        return False
    if any(_only_japanese(c) for c in han) or _JAPANESE_WORDS.search(text):
        return True
    if any(part in _JAPANESE_ALONE for part in text.split()):
        return True
    # 信号機: a form of Simplified beside one of Traditional, which no Chinese script mixes.
    mixed = any(map(_only_simplified, han)) and any(map(_only_traditional, han))
    return mixed and not han & _CHINESE_GRAMMAR


def _only_japanese(c: str) -> bool:
    """駅, 転, 桜: in Japan's standard, in neither of China's, and no variant that OpenCC knows."""
    chinese = _in("gb2312", c) or _in("big5", c) or simplify(c) != c or c in _CHINESE_VARIANTS
    return c == "々" or (not chinese and _in("shift_jis", c))


def _only_simplified(c: str) -> bool:
    return _in("gb2312", c) and not _in("big5", c) and c not in _CHINESE_VARIANTS


def _only_traditional(c: str) -> bool:
    return _in("big5", c) and not _in("gb2312", c)


@cache
def _in(charset: str, c: str) -> bool:
    try:
        return bool(c.encode(charset))
    except UnicodeEncodeError:
        return False


def simplify(text: str) -> str:
    """Traditional Chinese to Simplified; other text passes unchanged."""
    return str(_converter().convert(text))


@cache
def _converter():  # type: ignore[no-untyped-def]  # the package has no types
    import opencc

    return opencc.OpenCC("t2s")
