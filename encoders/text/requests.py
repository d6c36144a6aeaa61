"""Queries as people say them: what is asked for, without the words that ask for it.

    subject("show me some pictures of a violin, please", "en")   # "a violin"
    subject("请帮我找一张有猫的照片", "zh")                          # "猫"
    subject("バイオリンの写真を見せて", "ja")                         # "バイオリン"

Text encoders learn from captions, which describe and never ask. A pattern is one way to ask,
and `x` what is asked for; patterns apply one after another until none does. They are written so
that descriptions pass unchanged: a man taking pictures, 看书的女孩, 墙上的照片.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from capsearch.encoders.text.languages import normalise, simplify

_MEDIA = r"(?:photo(?:graph)?s?|pictures?|pics?|images?|snapshots?)"
_DETERMINER = r"(?:a|an|any|some|the|all|my|our|your|more|one|few|other|of)"
_ENGLISH = (
    r"(?:please|(?:hi|hello|hey|ok|okay)[,!])\s+(?P<x>.+)",
    r"(?P<x>.+?),?\s+(?:please|thanks|thank you)",
    r"(?:(?:can|could|would|will)\s+you\s+|help\s+me\s+(?:to\s+)?)(?:please\s+)?"
    r"(?:show|find|get|give|fetch|look\s+for|search(?:\s+for)?)(?:\s+(?:me|us))?\s+(?P<x>.+)",
    r"(?:(?:show|find|get|give|fetch)\s+(?:me|us)|(?:pull|bring)\s+up)\s+(?P<x>.+)",
    rf"(?:find|show|search)\s+(?P<x>(?:{_DETERMINER}\s+)*{_MEDIA}\s.+)",
    r"(?:find|search\s+for|look\s+for)\s+(?P<x>(?:a|an|the|any|some|all|my|our)\s.+)",
    r"(?:i(?:'m|\s+am)\s+|we(?:'re|\s+are)\s+)?(?:looking|searching)\s+for\s+(?P<x>.+)",
    r"(?:i|we)(?:\s+want|\s+need|(?:'d|\s+would)\s+(?:like|love))"
    r"(?:\s+to\s+(?:see|find|have|look\s+at))?\s+(?P<x>.+)",
    r"(?:i\s+|we\s+)?wanna\s+(?:see|find|have)\s+(?P<x>.+)",
    r"(?:need|want)\s+(?P<x>(?:a|an|the|any|some)\s.+)",
    r"(?:(?:can|could|may)\s+(?:i|we)|let\s+(?:me|us)|let's)\s+(?:please\s+)?"
    r"(?:see|find|have|get)\s+(?P<x>.+)",
    r"(?:have\s+(?:you|we|i)\s+)?got\s+(?P<x>any\s.+)",
    r"(?P<x>any\s.+?)(?:\s+around)?\s+here\?",
    r"what\s+do(?:es)?\s+(?P<x>.+?)\s+look\s+like",
    r"(?:do|did)\s+(?:you|we|i)\s+have\s+(?P<x>.+)",
    r"have\s+(?:you|we|i)\s+(?:ever\s+)?(?:got|seen|photographed|taken)\s+(?P<x>(?:a|an|any|some)\s.+)",
    r"(?:is|are)\s+there\s+(?P<x>.+)",
    r"where(?:'s|\s+is|\s+are)\s+(?P<x>.+)",
    r"where\s+(?:can|could|do)\s+(?:i|we)\s+(?:see|find)\s+(?P<x>.+)",
    r"who(?:'s|\s+is)\s+(?P<x>\w+ing\b.*)",
    rf"(?:which|what)\s+{_MEDIA}\s+(?:shows?|ha(?:s|ve)|contains?|(?:is|are)\s+of)\s+(?P<x>.+)",
    rf"(?:{_DETERMINER}\s+)*{_MEDIA}\s+(?:of|with|showing|containing|featuring"
    r"|(?:that|which)\s+(?:shows?|contains?|ha(?:s|ve))|(?:where|in\s+which)\s+there\s+(?:is|are))"
    r"\s+(?P<x>.+?)(?:\s+in\s+(?:it|them))?",
    rf"(?P<x>(?!.*\b(?:is|are)\b).+?)\s+in\s+(?:the|this|these)\s+{_MEDIA}",
    # Two words at most, and no "taking pictures", "framed pictures".
    r"(?P<x>(?!\S*(?:ing|ed)\s)(?:[^\s,]+\s){0,1}[^\s,]+(?<!ing)(?<!ed)(?<!the)(?<!some)(?<!any))"
    r"\s+(?:photos|pictures|images|pics)",
)
# After a request any last word for an image is part of it: "I want a violin image".
_ENGLISH_REQUESTED = (rf"(?P<x>.+?)\s+(?:{_MEDIA}|shots?)",)
_IMAGE_ZH = r"(?:照片|图片|相片|图像|图)"
_SOME_ZH = r"(?:[一两三几]张|一些|所有|全部|张|些)"
# Who holds, looks at or hangs up a picture is in a scene with it; and so is what it is on.
_NO_SCENE_ZH = r"(?!.*[看拿举挂贴拍画])"
_LOOK_ZH = (
    r"(?:(?:找|搜索|搜|查|看)(?:一[找看搜]|一下|找|看|到|出)?|查找|显示|展示|来(?=[一两三几]张))"
)
_CHINESE = (
    r"(?:请问|请(?=[你您帮给替让找搜查看显展])|麻烦你?|拜托|你好)[，,]?(?P<x>.+)",
    rf"(?:(?:你|您)?(?:能不能|可不可以|可以|能|可否))?(?:帮我|帮忙|给我|替我|让我){_LOOK_ZH}?"
    r"(?P<x>.+?)(?:好吗|可以吗|行吗|吗|吧|呗)?",
    r"(?:(?:找|搜索|搜|查)(?:一下|一[找搜])|找找|搜搜|看一下|来(?=[一两三几]张))(?P<x>.+)",
    rf"把(?P<x>.+?的{_IMAGE_ZH})(?:全部|全|都)?(?:{_LOOK_ZH}(?:出来|给我)?)?",
    rf"求(?P<x>.+?)的?{_IMAGE_ZH}",
    r"(?P<x>.+?)(?:是|长)(?:什么|啥)样(?:子|的)?",
    rf"(?:找|搜索|搜|查找|显示|展示)(?P<x>(?:{_SOME_ZH}|有).+)",
    rf"(?:找|搜索|搜|查找|显示|展示)(?P<x>.+的{_IMAGE_ZH})",
    rf"(?:我们?(?:正?在找|(?:想要?|要|希望){_LOOK_ZH})|想(?:看|找)[看找到]?)(?P<x>.+)",
    rf"我们?(?:想要|需要|要)(?P<x>.+{_IMAGE_ZH})",
    r"(?:我们?|你们?|这里)?(?:有没有|是否有)(?P<x>.+)",
    r"(?P<x>.+?)(?:有没有|有吗)",
    r"(?:我们?|你们?|这里)?有(?P<x>.+?)吗",
    r"(?P<x>.+?)在(?:哪里|哪儿|哪|什么地方)[呢啊]?",
    r"(?:哪里|哪儿)(?:有|能看到|可以看到)(?P<x>.+)",
    rf"哪(?:一张|张|些|几张){_IMAGE_ZH}[里中上]?(?:有|是|拍了|拍到|出现了?)(?P<x>.+)",
    rf"{_IMAGE_ZH}[里中](?:面)?有(?P<x>.+)",
    rf"{_SOME_ZH}?(?:有|拍到|拍了|含有|包含|带有)(?P<x>.+?)的{_IMAGE_ZH}",
    rf"{_SOME_ZH}(?P<x>.+?)的{_IMAGE_ZH}",
    rf"(?P<x>{_NO_SCENE_ZH}.+?(?<![上里中下边前后]))的{_IMAGE_ZH}",
    r"(?P<x>.+?)\s+(?:照片|图片|相片)",
)
_CHINESE_REQUESTED = (rf"{_SOME_ZH}(?P<x>.+)", r"(?P<x>.+?)(?:照片|图片)")
_IMAGE_JA = r"(?:写真|画像|フォト)"
_JAPANESE = (
    r"(?:すみません|お願い|ねえ|どうか)[、,]?\s*(?P<x>.+)",
    r"(?P<x>.+?)(?:だけ)?[をがの]?(?:何枚か|一枚|1枚)?(?:見せて|みせて|探して|さがして|検索して|表示して|送って)"
    r"(?:(?:くだ|下)さい|もらえますか|もらえる|くれますか|くれませんか|くれる|いただけますか"
    r"|(?:欲し|ほし)い(?:です)?|ね|よ)?",
    # Who looks for something is described by が or は: 犬がボールを探しています.
    rf"(?P<x>[^がは]+|.+{_IMAGE_JA})を探して(?:います|いる|る)",
    r"(?P<x>.+?)を(?:何枚か|一枚|1枚)?(?:(?:くだ|下)さい|お願い(?:します)?|ちょうだい|頂戴|検索|表示|希望)",
    r"(?P<x>.+?)(?:は|って)どんな(?:見た目|姿|感じ|もの|の)?(?:ですか|なの)?",
    r"(?P<x>.+?)[をが](?:見|み)たい(?:です|な)?",
    r"(?P<x>.+?)[がを](?:欲し|ほし)い(?:です|な)?",
    r"(?P<x>.+?)(?:は|って|が|も)?(?:ありますか|いますか|あるか|いるか|あるの\?|いるの\?|ある\?|いる\?"
    r"|ありませんか|いませんか|ないですか)",
    r"(?P<x>.+?)(?:は|って|が)?(?:どこ|何処)(?:に(?:いますか|ありますか|いるの|あるの|いる|ある)|ですか|なの|かな|だ)?",
    rf"(?P<x>.+?(?<!昔)(?<!から))(?:の|[がの](?:写|映)(?:っている|ってる|った|る)|[がの](?:入った|入っている|ある|いる)|を撮った|が見える)"
    rf"{_IMAGE_JA}",
    rf"(?P<x>.+?)\s+{_IMAGE_JA}",
    rf"{_IMAGE_JA}[、,]\s*(?P<x>.+)",
)
_JAPANESE_REQUESTED = (rf"(?P<x>.+?)の?{_IMAGE_JA}",)
_END = r"[\s?!.,。、~〜…]*"


def _compiled(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern + _END, re.IGNORECASE) for pattern in patterns)


_PATTERNS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "en": _compiled(*_ENGLISH),
    "zh": _compiled(*_CHINESE),
    "ja": _compiled(*_JAPANESE),
}
_REQUESTED: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "en": _compiled(*_ENGLISH_REQUESTED),
    "zh": _compiled(*_CHINESE_REQUESTED),
    "ja": _compiled(*_JAPANESE_REQUESTED),
}
_ARTICLE = re.compile(r"(?:the|any|some|all|my|our)\s+(?=\w)", re.IGNORECASE)
_LETTER = re.compile(r"\w")
_MAX_CHARACTERS = 200  # of a request; longer texts are descriptions


def subject(text: str, language: str) -> str:
    """What a query asks for; the text itself if it only describes, or asks for nothing else."""
    plain = normalise(text)
    if len(plain) > _MAX_CHARACTERS:
        return text
    plain = simplify(plain) if language == "zh" else plain
    left = _asked_for(plain, _PATTERNS.get(language, ()))
    if left == plain:
        return text
    left = _asked_for(left, (*_PATTERNS[language], *_REQUESTED[language]))
    left = re.sub(rf"{_END}\Z", "", left)
    return _ARTICLE.sub("", left, count=1) if language == "en" and _ARTICLE.match(left) else left


def _asked_for(text: str, patterns: Sequence[re.Pattern[str]]) -> str:
    """What is left when no pattern applies any more."""
    for pattern in patterns:
        found = pattern.fullmatch(text)
        left = found["x"].strip() if found else ""
        if left != text and _LETTER.search(left):
            return _asked_for(left, patterns)
    return text
