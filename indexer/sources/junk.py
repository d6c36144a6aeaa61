"""Texts in description fields that are not captions: what cameras, programs and agencies write.

Each rule is a pattern that must match the whole text, which has been normalised. What no rule
knows is judged by its characters and words: a caption consists of words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import cache

from capsearch.encoders.text.languages import HAN, KANA

_MAKER = (
    "agfa|apple|asus|benq|blackberry|canon|casio|dji|fujifilm|fuji|ge|google|gopro|hasselblad|hp"
    "|htc|huawei|honor|jenoptik|kodak|konica|kyocera|leica|lenovo|lge?|medion|minolta|motorola"
    "|nikon|nokia|olympus|oneplus|oppo|panasonic|pentax|polaroid|realme|redmi|ricoh|rollei|samsung"
    "|sanyo|sigma|sony|toshiba|traveler|vivo|vivitar|xiaomi|zte"
)
_IMAGE_FILE = (
    r"\.(jpe?g|jpe|png|gif|tiff?|bmp|webp|hei[cf]|avif|psd|dng|nef|cr[23]|arw|raf|orf|rw2)"
)
_MONTH = (
    "jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sep(t(ember)?)?|oct(ober)?"
    "|nov(ember)?|dec(ember)?"
)
_URL = r"(https?://|www\.)\S+"
_DOMAIN = r"[\w-]+(\.[\w-]+)*\.(com|net|org|info|de|fr|it|es|nl|eu|cn|jp|tw|hk|uk|us|io|co|photo)"
# Of a person or an agency.
_NAME = r"[A-Z][\w.'’/&-]*([ ,]+(and |& |/ ?)?[A-Z][\w.'’/&-]*){0,4}"
_EMAIL = r"[\w.+-]+@[\w-]+(\.[\w-]+)+"

# Kinds of junk, and the patterns of each. Those under `exact` distinguish capitals.
_RULES: Mapping[str, tuple[str, ...]] = {
    "camera": (
        rf"(({_MAKER}) )*(digital )?(still )?camera( pictures)?",
        rf"({_MAKER})( (dsc|corporation|imag(e|ing)|computer|optical|co|company|inc|ltd|electronics"
        r"|mobile|ltd)\b[ .,ltd]*)*",
        rf"({_MAKER})( corporation)?( ({_MAKER}))? (?=.*\d)(?!.* (at|in|on|of|with|and|by) ).*",
        r"(dsc|dcim|dav|cof|sdr|hdr|hdrpl|rhdr|mde|qrf|oznor\w*|rptnw|nor|burst|btf|fbt|ptr|cav|srm)",
        r"exif[_ ]jpeg([_ ]\w+)*",
        r"(i(phone|pad)|galaxy|pixel|mi|redmi) ?\w*( \w+)* (front|back)( \w+)* camera.*",
        rf"shot (on|by|with) (my |an? )?(({_MAKER}|i(phone|pad)|galaxy|pixel|mi) ?.*|\w+ camera)",
        r"(by|with|via|from) (my )?(iphone|ipad|android|galaxy)( \w+)?",
        r"ai[_ ](scene|camera|triple camera|quad camera).*",
        r"(1/\d+ ?s(ec)?|f/? ?\d+(\.\d+)?|iso ?\d+|\d+(\.\d+)? ?mm|[+-]?\d(\.\d)? ?ev|[,; ])+",
        r"(?!在|于)(由|用|使用)?\S{0,12}(手机|相机|华为|小米|荣耀|苹果|三星|vivo|oppo|iphone|huawei)"
        r"[\w ]{0,10}(拍摄|拍攝|摄)",
        r"(美颜|美顏|小米|徕卡|萊卡|数码|數碼|无他|轻颜|b612)(相机|相機|咔叽)",
        r"(iphone|スマホ|携帯|デジカメ|ガラケー)\S{0,6}で撮影",
    ),
    "software": (
        r"(ascii )?((created|processed|edited|generated|optimi[sz]ed|scanned) by|(created|processed"
        r"|edited|made|exported|generated|enhanced|retouched|converted|resized|captured|scanned)"
        r" (with|in|using|from)) (?!love|care|my |the help)([^\s:,!?]+ ){0,5}[^\s:,!?]+",
        r"file (written|source) .*",
        r"creator: .*",
        r"lead technologies.*|acd systems.*|intel\(r\) .*|appl ?mark.*|handmade software.*",
        r"(adobe |corel |microsoft |google |apple )?(photoshop|lightroom|photodeluxe|paintshop"
        r"|picasa|gimp|snapseed|instagram|vsco\w*|canva|irfanview|xnview|paint(\.net)?|imagemagick|ffmpeg"
        r"|meitu|capture one|darktable|digikam|acdsee|photoscape|faceapp|camera360)"
        r"( (pro|cc|cs\d?|elements|classic|ai|x))*( ?[v\d(].*)?",
        r"(本图)?(由|使用|用)\S{1,12}(制作|製作|编辑|編輯|处理|生成|美化|合成)",
        r"\S{1,12}(アプリ)?で(加工|編集|作成)(しました)?",
        r"美图秀秀|天天p图|醒图|黄油相机|稿定设计",
    ),
    "web": (
        _URL,
        rf"{_DOMAIN}(/\S*)?",
        r"(instagram|insta|ig|twitter|facebook|fb|flickr|500px|weibo|微博|小红书)( id)? ?[:@].*",
        rf"(\S+ ){{1,3}}{_URL}",
        rf"(from|at|see|visit|more( at)?|by|via) {_DOMAIN}",
        _EMAIL,
        rf"(\S+ ){{1,3}}{_EMAIL}",
        r"@\w+",
    ),
    "copyright": (
        r"(©|\(c\)|copyright\b|&copy;).{0,200}",
        r".{0,80}(all rights reserved|do not copy|no reuse without permission)\W*",
        r".{0,20}©.{0,40}",
        r"(photo(graph)?|image|picture|foto)s? ?(credits?|:|courtesy|supplied)"
        r".{1,80}",
        r"(photographer|credits?|courtesy( of)?|source|byline)\s*[:=].{1,80}",
        r"(image|photo)s? courtesy of .{1,60}",
        r".{0,20}(版权所有|版權所有|翻印必究|禁止转载|禁止轉載|请勿转载|转载请注明|侵权必究).{0,30}",
        r"(摄影|攝影|摄|图片来源|圖片來源|图源|来源|來源|图|作者|供图|记者)\s*[:/].{1,30}",
        r"\S{0,12}(记者|記者) ?\S{1,8} ?[摄攝]",
        r"(afp|reuters|ap|epa|dpa|getty( images)?|xinhua|corbis|shutterstock|i?stock ?photo|alamy"
        r"|magnum|アフロ|共同通信(社)?|時事通信(社)?|视觉中国|新华社)"
        r"( photos?| images?| pictures)?( ?/.*)?",
        r".{0,20}(無断転載|無断使用|転載禁止|無断複製).{0,20}",
        r"(撮影|撮影者|写真|写真提供|提供|出典|著作権|著作者|クレジット)\s*[: /].{1,30}",
    ),
    "file name": (
        rf".*[\w)]{_IMAGE_FILE}",
        r"dsc-\w+|_?(dsc|dscf|dscn|dsc_|img|_?mg|img_e|imag|imgp|pict?|pxl|pano|mvi|gopr|gp|dji|hpim|cimg|sam"
        r"|kif|sdc|ssl|scan|burst|dcp|dscn|wp|p|s|r|l|image|photo|picture|file|screenshot)"
        r"[ _-]?\d[\d_ .-]*([ _-]?(wa|mp|burst|copy|hdr|edit\w*|cover)\d*)*( \(\d+\)| copy)?",
        r"(signal|whatsapp image|photo|screen ?shot|screenshot|screen recording|capture"
        r"|bildschirmfoto|微信图片|微信圖片|wechat image|qq图片|qq截图|截图|截屏|屏幕快照|屏幕截图"
        r"|螢幕快照|螢幕截圖|スクリーンショット|スクショ|写真|mmexport|wx_camera|fb_img|received|line|retouch|inshot"
        r"|beautyplus|collage|picsart)[ _-]*[\d_ .:-]*(at|上午|下午|午前|午後)?[\d_ .:-]*",
        r"\d{2,4}[-_ ]\d{3,5}([-_]\w+)?",
        r"(untitled|未标题|未命名|無題|无标题|無標題|名称未設定|新建图像|新規画像)"
        r"[ -]*\d*( copy| 副本| のコピー)*",
        r"[0-9a-f]{16,}",
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}.*",
    ),
    "position": (
        r"[-+]?\d{1,3}\.\d{3,}[°\s,;]+[nsew]?[-+ ]*\d{1,3}\.\d{3,}[°\s]*[ew]?",
        r"([nsew北南东東西纬緯经經度分秒]|gps|lat(itude)?|lon(gitude)?"
        r"|[\d.°º'′\"″:,+\s-])*\d+ ?[°º度]"
        r"([nsew北南东東西纬緯经經度分秒]|[\d.°º'′\"″:,+\s-])*",
    ),
    "date": (
        r"(\d{1,4}[-/.:年月日号號時时分秒\s,]*){2,7}(am|pm|z|utc|gmt|[+-]\d{1,4})?",
        r"\d{8}(t?\d{4,6}z?)?",
        rf"((mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?,? )?"
        rf"(\d{{1,2}}(st|nd|rd|th)?,? )?({_MONTH})\.?,? (\d{{1,2}}(st|nd|rd|th)?,? )?\d{{4}}"
        r"(,? at)?( \d{1,2}:\d{2}.*)?",
        r"(令和|平成|昭和|大正|明治)(元|\d{1,2})年(\d{1,2}月)?(\d{1,2}日)?",
        r"[〇零一二三四五六七八九十]{4}年([一二三四五六七八九十]{1,3}月)?([一二三四五六七八九十]{1,3}日)?",
    ),
    "settings": (
        r"[<{\[].*[>}\]]",
        r".*\bsteps: \d+.*",
        r"(\w[\w -]{0,30}[:=] ?[^:;=,]{0,30}[;,] ?){3,}.*",
        r"(charset|software|program|camera|model|make|lens|author|artist|xmp\.\w+) ?[:=].*",
        r"[\w.]+ ?= ?\S+",
    ),
    "placeholder": (
        r"ascii|unicode|jis|undefined|binary comment|user comment|comment|default|untitled|no name"
        r"|none|null|n/?a|nil|test|title|description|caption|picture|photo|image|img|jpe?g|png|foto"
        r"|screenshot|screen shot|screen capture|new image|my photo|<untitled>|dummy|sample|scan"
        r"|image[ _-]asset|digital image|image description|no description( available)?",
        r"图片|照片|图像|圖片|相片|画像|写真|無題|无标题|未命名|测试|テスト|说明|描述",
    ),
}
_EXACT = {  # "Photo by the lake" is a caption, "Photo by John Smith" is not
    "copyright": (rf"(Photos?|Photo(graph)?ed|Image|Picture|Shot|PHOTO) (by|BY):? {_NAME}\W*",),
}
_HASHTAG = re.compile(r"#\S+")
_WORD = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*")
_VOWEL = re.compile("[aeiouyàáâãäåæèéêëìíîïòóôõöøùúûüýœ]", re.IGNORECASE)
_HIDDEN = frozenset({"Cc", "Cn", "Co", "Cs"})  # controls, unassigned, private use, surrogates
_MAX_RULE_CHARACTERS = 300  # what cameras and agencies write is short, settings are long
_MIN_LETTERS = 0.5  # of the characters that are not spaces


def kind_of_junk(text: str) -> str | None:
    """Which kind of text this is, if it is not a caption; None for a caption.

    `text` is normalised: NFKC and single spaces.
    """
    if _is_hashtags(text):
        return "hashtags"
    for kind, pattern in _compiled():
        short = len(text) <= _MAX_RULE_CHARACTERS or kind == "settings"
        if short and pattern.fullmatch(text):
            return kind
    return None if _consists_of_words(text) else "no words"


def _is_hashtags(text: str) -> bool:
    return bool(text.split()) and all(_HASHTAG.fullmatch(part) for part in text.split())


def _consists_of_words(text: str) -> bool:
    """Whether half of the characters are letters, none hidden, and Latin words can be spoken."""
    visible = [c for c in text if not c.isspace()]
    # A character in Han or kana says about as much as three Latin letters.
    letters = sum(3 if HAN.match(c) or KANA.match(c) else c.isalpha() for c in visible)
    if any(unicodedata.category(c) in _HIDDEN or c == "\ufffd" for c in visible):
        return False
    if letters < 2 or letters < _MIN_LETTERS * len(visible):
        return False
    latin = all(c < "\u0250" for c in visible if c.isalpha())
    return not latin or any(map(_can_be_spoken, _WORD.findall(text)))


def _can_be_spoken(word: str) -> bool:
    return len(word) <= 30 and (bool(_VOWEL.search(word)) or word.isupper())


@cache
def _compiled() -> tuple[tuple[str, re.Pattern[str]], ...]:
    any_case = [
        (kind, re.compile(pattern, re.IGNORECASE | re.DOTALL))
        for kind, patterns in _RULES.items()
        for pattern in patterns
    ]
    exact = [(kind, re.compile(one)) for kind, patterns in _EXACT.items() for one in patterns]
    return (*any_case, *exact)
