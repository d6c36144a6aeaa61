"""What a text is before any model sees it: normalised, and known to be zh, ja or en."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_KANA = re.compile(r"[\u3040-\u30ff\u31f0-\u31ff]")
_HAN = re.compile(r"[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_SPACE = re.compile(r"\s+")

# Han characters that only Japanese writes: forms simplified in Japan alone, and characters
# made there. What Simplified or Traditional Chinese shares is left out.
_JAPANESE_ONLY = frozenset(
    "々〆亜悪圧囲壱隠栄営鋭駅悦円縁応殴桜奥横仮価画絵壊懐概拡覚楽勧巻歓観気帰亀偽戯犠"
    "拠挙峡挟暁駆勲恵掲渓経継茎蛍軽鶏芸撃欠倹剣圏検権県険顕験厳広効恒黄鉱剤砕済斎剤冊雑桟"
    "惨賛残糸歯児辞湿実舎釈収従渋獣縦粛処緒諸叙奨将焼称証乗剰壌嬢条浄状畳縄譲醸嘱触"
    "寝慎真神尽図粋酔穂随髄枢数瀬斉摂窃専戦浅潜繊薦践銭遷選禅僧層巣総騒増憎臓蔵贈続"
    "堕対帯滞沢択滝単団弾遅昼鋳庁聴脳鎮塚逓鉄転点伝徳読届弐悩脳覇拝廃売麦発髪抜晩浜"
    "頻敏瓶払仏並餅変辺弁歩舗穂豊仏翻毎満黙弥薬訳予余与誉揺様謡来頼覧欄竜両猟緑隣涙塁"
    "励礼隷霊齢暦歴恋練錬炉労廊朗楼録込畑働峠辻枠栃匂凪雫麿喰畠笹榊噺鰯鱈俣躾腺膵"
)
# Han-only words that mark a sentence as Japanese though Chinese could write the characters.
_JAPANESE_WORDS = (
    "写真", "野球", "子供", "電車", "時計", "台所", "風船", "飛行機", "自動車", "新幹線",
    "男性", "洗面所", "食卓", "料理", "信号機", "交差点", "女の子", "人々", "大勢", "野菜",
)  # fmt: skip


def normalise(text: str) -> str:
    """NFKC, no control or zero-width characters, single spaces. The script stays as written."""
    folded = unicodedata.normalize("NFKC", text)
    visible = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in folded)
    kept = "".join(c for c in visible if unicodedata.category(c) != "Cf")
    return _SPACE.sub(" ", kept).strip()


def detect(text: str) -> str:
    """The language a text is taken for: kana is ja, Han alone zh, everything else en.

    Statistical detectors call short Chinese Korean, so the script decides; Han-only text
    counts as Japanese when it holds a character or a word that only Japanese uses.
    """
    text = unicodedata.normalize("NFKC", text)
    if _KANA.search(text):
        return "ja"
    if not _HAN.search(text):
        return "en"
    if _japanese_only() & set(text) or any(word in text for word in _JAPANESE_WORDS):
        return "ja"
    return "zh"


@cache
def _japanese_only() -> frozenset[str]:
    """_JAPANESE_ONLY less every character that Chinese text uses in either script."""
    return frozenset(c for c in _JAPANESE_ONLY if simplify(c) == c) - _chinese_characters()


@cache
def _chinese_characters() -> frozenset[str]:
    from importlib.resources import files

    table = files("opencc").joinpath("dictionary/STCharacters.txt").read_text(encoding="utf-8")
    return frozenset(c for line in table.splitlines() for c in line if _HAN.match(c))


def simplify(text: str) -> str:
    """Traditional Chinese to Simplified; other text passes unchanged."""
    return str(_converter().convert(text))


@cache
def _converter():  # type: ignore[no-untyped-def]  # the package has no types
    import opencc

    return opencc.OpenCC("t2s")
