"""Text before any model: normalisation, scripts, language, Simplified Chinese."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache
from typing import Any

from capsearch.encoders.kana import repair
from capsearch.encoders.latin_languages import latin_language

# Without ・ (U+30FB) and ー (U+30FC): Chinese writes them in foreign names and as a dash.
KANA = re.compile(r"[\u3041-\u309a\u309d-\u309f\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff]")
HAN = re.compile(r"[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
# The languages of other scripts: the code for letters of that script, by the first word of their
# Unicode names. A script of several languages has the one with most speakers, if any stands out.
_SCRIPTS = {
    "HANGUL": "ko", "CYRILLIC": "ru", "THAI": "th", "ARABIC": "ar", "HEBREW": "he", "GREEK": "el",
    "DEVANAGARI": "hi", "BENGALI": "bn", "TAMIL": "ta", "GEORGIAN": "ka", "ARMENIAN": "hy",
    "KHMER": "km", "LAO": "lo", "MYANMAR": "my", "TIBETAN": "bo",
}  # fmt: skip
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC")
_UKRAINIAN, _PERSIAN = frozenset("іїєґ"), frozenset("پچژگ")
UNDETERMINED = "und"  # ISO 639-2
_SPACE = re.compile(r"\s+")
_ENCODABLE = re.compile(r"[^\ud800-\udfff]+")
_BLANK = ("Cc", "Cs", "Zl", "Zp")  # Cs: lone surrogates, as in undecodable file names

# Japanese words that no Chinese sentence contains, although Chinese has their characters.
# 料理, 男性, 電車, 野菜 and 新幹線 are left out: they are Chinese words too.
_JAPANESE_WORDS = re.compile(
    "(?<!打)野球(?![帝王])|(?<![電孩親種弟])子供(?![應給奉養])|飛行機(?![器械組構動會翼員])"
    "|(?<![全一各內内])部屋(?![子頂])|自動車(?![庫輛廂床])|食卓(?!越)|洗面所(?![用需有])"
    "|交差点|腕時計|時計台|砂浜|横浜|弁当|芝生|滑走路|駐車場|一軒家"
    "|(?:家族|航空|記念|集合)写真|写真(?:家|立)"
)
# Words that are Japanese between spaces, but may also be part of a Chinese phrase (麵包丁).
_JAPANESE_ALONE = frozenset(
    ("写真", "時計", "台所", "風船", "果物", "荷物", "屋根", "包丁", "試合", "朝食", "夕食", "夕日")
)
# Variants that Chinese texts use (in Hong Kong, or informally) beyond Big5 and GB 2312.
_CHINESE_VARIANTS = frozenset("〇着脱税悦温没内床峰衞擡痩値躱廻菓")
# Function words of Chinese sentences, rare in Japanese compounds of Han characters.
_CHINESE_GRAMMAR = frozenset("的了着著是在與和跟只個个們他她它把被很沒没这那")


def normalise(text: str) -> str:
    """NFKC, kana repaired, no control or zero-width characters, single spaces.

    The script stays as written.
    """
    visible = (" " if unicodedata.category(c) in _BLANK else c for c in text)
    # Remove zero-width characters before NFKC: the characters on both sides of one may compose.
    joined = "".join(c for c in visible if unicodedata.category(c) != "Cf")
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", repair(joined))).strip()


def language_by_script(text: str) -> str:
    """ja for any kana, zh for Han without kana, en for everything else.

    Enough for a vote over many sentences in one of these; `detect` knows more languages.
    """
    return "ja" if KANA.search(text) else "zh" if HAN.search(text) else "en"


def detect(text: str) -> str:
    """The language of one text, an ISO 639-1 code, or "und" for a script without a known one.

    Statistical detectors report short Chinese as Korean, so the script decides: the one with most
    letters. Latin has more letters a word, so others win over it with half as many, and kana
    and Han with any. Text in Han alone is Japanese
    only if Chinese would not be written that way: in doubt it is Chinese. Text in Latin letters
    is English unless its words say otherwise, and so is text without letters.
    """
    if text.isascii():
        return latin_language(text)
    text = unicodedata.normalize("NFKC", text)
    scripts = _scripts(text)
    east_asian = sum(scripts.pop(name, 0) for name in _EAST_ASIAN)
    latin = scripts.pop("LATIN", 0)
    other, count = max(scripts.items(), key=lambda item: item[1], default=("", 0))
    if count > east_asian and 2 * count >= latin:
        return _of_script(other, text)
    if KANA.search(text):
        return "ja"
    han = frozenset(HAN.findall(text))
    if not han:
        return latin_language(text)
    return "ja" if _japanese(text, han) else "zh"


def _scripts(text: str) -> Counter[str]:
    """How many letters each script has; scripts go by the first word of a letter's name."""
    letters = (c for c in text if c.isalpha())
    return Counter(unicodedata.name(c, UNDETERMINED).split()[0] for c in letters)


def _of_script(script: str, text: str) -> str:
    letters = frozenset(text.lower())
    if script == "CYRILLIC" and letters & _UKRAINIAN:
        return "uk"
    if script == "ARABIC" and letters & _PERSIAN:
        return "fa"
    return _SCRIPTS.get(script, UNDETERMINED)


def _japanese(text: str, han: frozenset[str]) -> bool:
    """Whether text without kana is Japanese, by the national character sets and word lists."""
    if not all(_in("shift_jis", c) for c in han):
        return False
    if any(_only_japanese(c) for c in han) or _JAPANESE_WORDS.search(text):
        return True
    if any(part in _JAPANESE_ALONE for part in text.split()):
        return True
    # 信号機: a Simplified form beside a Traditional one; no Chinese text mixes the two.
    mixed = any(map(_only_simplified, han)) and any(map(_only_traditional, han))
    return mixed and not han & _CHINESE_GRAMMAR


def _only_japanese(c: str) -> bool:
    """駅, 転, 桜: in Shift-JIS, not in GB 2312 or Big5, and not a variant that OpenCC converts."""
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
    convert = _converter().convert
    # OpenCC takes UTF-8, which has no lone surrogates (undecodable file names contain them).
    return _ENCODABLE.sub(lambda match: str(convert(match[0])), text)


@cache
def _converter() -> Any:
    import opencc

    return opencc.OpenCC("t2s")
