"""Text before any model: normalisation, scripts, language, Simplified Chinese.

English or another language in Latin letters, by function words and accented letters.

Meant for captions, where names of people and places in other languages are frequent: a text
counts as another language only if the evidence for it is more than that for English.

Japanese spellings: kana written with the wrong marks, and words that have several spellings.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

_WORD = re.compile(r"[^\W\d_]+")
_MIN_WORDS = 3  # "Rio de Janeiro" and "crème brûlée" do not tell a language
_STRONG, _WEAK = 1.0, 0.5
_NEEDED = 1.0

# Function words and the most common words of captions. Those in many names, or with a meaning in
# English, are in _WEAK_WORDS.
_WORDS: Mapping[str, str] = {
    "de": """aber alle als alte alten auf aus bei beim blick das dem den der die durch ein eine
        einem einen einer eines es frau für geburtstag haus hinter hochzeit hund ich ihr ihre im ist
        junge katze kein keine kinder kleine kleiner klein mein meine meinem meiner mit mädchen
        nach neben neue neuen neues nicht noch oder opa oma ohne rote roten sehr sein seine sich
        sie sind spielen und uns unser unsere unter urlaub vom von vor vorne wald wanderung
        weihnachten wie wir wird zu zum zur zwei zwischen über""",
    "fr": """anniversaire au aux avec cet cette chat chez chien ce ces dans de derrière des deux du
        elle en enfants entre est et femme fille garçon homme il ils je jour la le les leur leurs
        maison ma mer mes mon moi notre nos nous nuit où par pas petit petite plage pour près qui
        que rouge rue sa ses son sont sous sur très un une vacances vers vue à été""",
    "es": """abuela abuelo al amigos boda calle casa con cumpleaños de del desde día dos el ella en
        entre es esta este está hijo hija hombre la las lo los mar más mi mis muy mujer
        niña niño niños nuestra nuestro noche para pero perro gato playa por que se sin sobre su
        sus tarde un una unas unos vacaciones viaje vista y""",
    "it": """al alla allo amici anche bambini bambino casa che ci come compleanno con da dal dalla
        dei del della delle degli di donna due e figlia figlio gatto cane gli i il la le lo
        lago mare matrimonio mia mio mie miei montagne nel nella nelle nonna nonno nostra nostro
        non ogni per più ragazza ragazzi ragazzo si sono spiaggia su sua sul sulla suo tra tramonto
        un una uno uomo vacanze vista è""",
    "pt": """amigos ao aos aniversário as avó casa casamento com criança crianças da das de do dos
        dois e ela ele em entre esta este filha filho férias gato cão homem mar mais menina menino
        meu meus minha mulher muito na nas no nos nossa nosso não o os ou para pela pelo por praia
        que se sem seu sobre sol sua um uma vista à é""",
    "nl": """aan achter als bij bruiloft dat de deze die dit door een en haar hebben het hij hond
        hun huis ik je jongen kat kinderen kleine langs maar meisje met mijn naar naast niet nog om
        onder ons onze ook op oude over rode strand te tegen tijdens tot twee uit uitzicht vakantie
        van verjaardag voor vrouw was wij zee zijn zoon""",
    "vi": """bà bên các cái con có của cho chó em gái hai là một mèo người những này nhà nữ ông phố
        trai trên trong tôi và với biển đang được ở""",
    "pl": """chłopiec dla do dom dwa dwie dzieci i jest kobieta kot mężczyzna na nad nie od pies po
        pod przy się urodziny w wakacje z ze ślub""",
    "sv": """av barn barnen bredvid den det en ett flicka från för hund huset i inte katten kvinna
        med min mitt och på semester som till två under vid vår är över""",
    "tr": """bir bu da de deniz için ile iki kadın kedi köpek ve çocuk çocuklar üzerinde""",
    "id": """anak adalah atas bermain dan dari dengan di dua ini itu kami laki liburan pada pantai
        pria seekor seorang wanita yang untuk""",
}  # fmt: skip
_WEAK_WORDS = """
    al alla am an as au bad casa con da das de del den der des di die do dos du e el en et i
    il in la las le les lo los man mar me mi min no notre o of om on over per san si so son su
    sur te to un under van vista von was w y z
"""
_LETTERS: Mapping[str, frozenset[str]] = {
    "de": frozenset("äöüß"),
    "fr": frozenset("àâçèéêëîïôùûœ"),
    "es": frozenset("ñáéíóú¿¡"),
    "pt": frozenset("ãõáâçéêíóôú"),
    "it": frozenset("àèìòù"),
    "sv": frozenset("åäö"),
    "pl": frozenset("ąćęłńśźż"),
    "tr": frozenset("şğıçöü"),
    "vi": frozenset("ăđơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ"),
}
# Frequent in English captions, and not words of the languages above.
_ENGLISH = """
    a about above across after against all along an and are around as at baby back bag ball
    baseball basket bathroom beach bear bed bedroom behind being bench beside between big bike bird
    birthday black blue board boat book bottle bowl box boy bread bridge brown building bus but by
    cake camera car cat catch chair child children christmas church city clock close clouds coffee
    cold colorful computer couch couple cow cross cup cut dad day desk dessert dinner dog dogs door
    down dress drink drive each eat eating elephant empty face family farm father fence field
    fire fish floor flower flowers flying food football for friends frisbee from front fruit full
    game garden girl girls glass glasses going grandma grandpa grass gray green ground group hair
    half hand hanging has hat have head her high hill him his holding home horse house ice inside
    into is it its jacket keyboard kid kids kitchen kite lake lamp laptop large
    laying leaves light line little living long looking lot luggage lunch made many market meal
    meat men middle mirror moon morning motorcycle mother mountain mountains mouse movie
    my near new next night ocean of off office old on one open or orange other our out
    outside over painting pair paper park parked people person phone picture piece pizza plane
    plate player playing pole pose posing portrait poster purple racket rain red ride
    rides riding river road rock rocks room row running sand sandwich scene school sea seat several
    she shirt shoes show side sign sink sits sitting sky skyline sleeping slice small smiling snow
    soccer some stand standing stands stop store street sun sunset suit surfboard surfing table
    taking tall team teddy tennis that the their them there they this three through tie to toilet
    together top tower toy track traffic train tree trees trip truck two umbrella under up using
    vase very view visit walking walks wall watching water wave wearing wedding what white who
    window wine winter with woman women wooden yard yellow you young zebra
"""


def latin_language(text: str) -> str:
    """The code of the language of a text in Latin letters: en unless another is more probable.

    Texts of fewer than three words count as English.
    """
    words = [word.lower() for word in _WORD.findall(text)]
    if len(words) < _MIN_WORDS:
        return "en"
    scores: dict[str, float] = defaultdict(float)
    for word in words:
        for code, weight in _evidence(word):
            scores[code] += weight
    best, score = max(scores.items(), key=lambda item: item[1], default=("en", 0.0))
    english = _listed(_ENGLISH)
    against = sum(word in english for word in words)
    return best if score >= _NEEDED and score > against else "en"


@lru_cache(maxsize=10_000)
def _evidence(word: str) -> tuple[tuple[str, float], ...]:
    """(code, weight) of the languages that have this word, or letters of it."""
    weight = _WEAK if word in _listed(_WEAK_WORDS) else _STRONG
    by_word = [(code, weight) for code in _known_words().get(word, ())]
    if word.isascii():
        return tuple(by_word)
    accented = (code for code, letters in _LETTERS.items() if not letters.isdisjoint(word))
    return (*by_word, *((code, _WEAK) for code in accented))


@cache
def _known_words() -> dict[str, tuple[str, ...]]:
    """The languages of every listed word."""
    codes: dict[str, list[str]] = defaultdict(list)
    for code, words in _WORDS.items():
        for word in words.split():
            codes[word].append(code)
    return {word: tuple(listed) for word, listed in codes.items()}


@cache
def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_KATAKANA = re.compile(r"[\u30a1-\u30fa][\u30a1-\u30fc]+")  # ・ and ー within
_HIRAGANA = re.compile(r"[\u3041-\u3096ー]+")
_SPACING_MARK = re.compile(r"(?<=[\u3041-\u30fa\uff66-\uff9d])[\u309b\u309c]")
_COMBINING = {"\u309b": "\u3099", "\u309c": "\u309a"}
# Signs that look like ー and are typed for it. Neither - nor ―, which stand between words.
_DASH = re.compile(r"(?<=[\u30a1-\u30fa])[\u2010\u2013\u2014\u2212](?=[\u30a1-\u30fc]|\W|$)")
_V_ROW = {"ヴァ": "バ", "ヴィ": "ビ", "ヴェ": "ベ", "ヴォ": "ボ", "ヴュ": "ビュ", "ヴ": "ブ"}


def repair(text: str) -> str:
    """ハ゛ as バ, which NFKC would take apart, and ソ−ス as ソース."""
    composed = _SPACING_MARK.sub(lambda mark: _COMBINING[mark[0]], text)
    return _DASH.sub("ー", composed)


def respell(text: str, known: Callable[[str], bool]) -> str:
    """The text with katakana words that are not known in a spelling that is, if there is one.

    ヴァイオリン is バイオリン, コンピュータ is コンピューター. A text in hiragana alone may be
    one in katakana: いるか is イルカ.
    """
    if _HIRAGANA.fullmatch(text) and not known(text):
        katakana = "".join(_to_katakana(character) for character in text)
        return katakana if known(katakana) else text
    return _KATAKANA.sub(lambda word: _known_spelling(word[0], known), text)


def katakana_words(text: str) -> list[str]:
    """The words that `respell` looks at."""
    return _KATAKANA.findall(text)


def _known_spelling(word: str, known: Callable[[str], bool]) -> str:
    if known(word):
        return word
    return next((one for one in spellings(word) if known(one)), word)


def spellings(word: str) -> Iterator[str]:
    """Other spellings of a word in katakana, the likeliest first."""
    plain = word
    for kana, other in _V_ROW.items():
        plain = plain.replace(kana, other)
    joined = plain.replace("・", "")
    for one in dict.fromkeys((plain, joined)):
        yield one
        yield one[:-1] if one.endswith("ー") else f"{one}ー"


def _to_katakana(character: str) -> str:
    return chr(ord(character) + 0x60) if "\u3041" <= character <= "\u3096" else character


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
    if text.isprintable() and unicodedata.is_normalized("NFKC", text):  # most texts; 10x as quick
        return _SPACE.sub(" ", repair(text)).strip()
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
