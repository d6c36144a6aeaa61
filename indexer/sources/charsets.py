"""Decoding text of unknown encoding, as editors and cameras in China, Japan and Europe write it.

Each candidate encoding stands for the language it was made for. Its decoding is scored by the log
probability of the characters in that language, and the most probable one is taken: text read with
the wrong encoding consists of rare characters.

The most frequent Han characters of Chinese and Japanese, most frequent first.

For telling encodings apart: text decoded with the wrong one consists of rare characters. Counted
in the training captions and, for Chinese, in the word frequencies of jieba's dictionary.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import log

from capsearch.encoders.text.languages import HAN, KANA, simplify

# 1,200 Simplified characters: 92 % of the Han in running text.
CHINESE = (
    "一在的人个上着有子男中是小了狗和地大孩不只里两女国色车正行玩道这为球来他年水会边们我下面自多"
    "滑长草以头发到群出生手动时要雪站机后起过放对家白学公说天前路成民海也坐于用场就马三间打穿之可"
    "板方看山作本物得主等员市分黑跑街旁高部电工西你开进能门全骑而业外都经表桌相日走种还飞名几花政"
    "法红心同去比拿东那区老位其代事各所好运张北定建照军些产从体然辆很理力现戴如奔与台制把新者明样"
    "空盘身文沙合向口当内重停实跳么城平被房关网通化带服将耍石没又冲南黄安游赛吃此条特立最衣无十月"
    "加树点情见性她已院但片书想交度常战果装火由第浪四治原使许镜意教入湖美具二并棒处武次金气数风河"
    "儿记因话标备托品利问及展量万级务知林任应式江资省委眼光系元汉回接提领椅木期摩世队包架共食满设"
    "太流船给蓝总步做准形滩猫或科己基先声脑义王拉少别摆直社阳干床目统报米五计铁首笑布司园指象汽师"
    "活举客器华室技观驶拍清权帽术命议结至再变管它解程住保州称绿土列更背导围便广决今才士反府号演达"
    "千划族题志信牛李息商京型受听规什组改县视足件论料根抱望百击古选影类取济强党集整线近双斯真毛神"
    "笔职质远农却众界传单转亲何兵座示克完块灯图非钟筑轻联半字热消据伞爱调躺难落连酒往防厨像增专菜"
    "官鱼历每史格争另即收墙鹿认死户办倒杯团考必餐岩咬栏叫坪言极夫造感尔皇投参泳德求写快持靠排英研"
    "窗朝香革属始周思积深该牌厅乐育楼萨较让切校微觉识推际趴鸟候桥约价颈友冰巴则段亚功告夜晚越蛋究"
    "势箱跃精叼熊嘴画容八青追顶池令层轮复察算构阶随低桶帝野速股显刀舞瓶跟皮戏支斑挂奶角节浴棕语值"
    "护羊引派断源早斗纪底编居项六秋需挥怎病证且雨亮律况脸境局龙匹未织练施散卡景弹旅除企油纸模破央"
    "左确副初离案响糕习置墨率朋药休罗卫胡均银乡营父村失存修宝般环脚甚饼篮谈音请曾试密素叶喝洗洲店"
    "艺田余兰星兴采爬创丛状攀费易占波杆云虽按鲜独维饭肉招待右查降依故富航陈批宫轨席母找乱杂留突严"
    "责若份胜态杀粉仅牙负似须供致踢玉域睡披续杨细承钱紧尼坡货九射筝短注馆养刚检七血洋彩尽范医终警"
    "陆训柜止获限礼效控超镇弟抗印攻屋哥甜协封堂圈闻章阿刻劳急苏盖念宗旧验味卧适伤娘优堆财喜升互茶"
    "套配助送呼啊绝例妇压盛抢害伸讲刘露盔翻烟吧奇登亿灰荡卖审略藏监温蔬惊策激岸呢括吉竟材梯掌充仍"
    "差暗剑忙岛敌侧怕普词哪端征预买善执夏继宣植欢谁久乎港答拥益齐核帮耳异聚辑蕉喷赶著尚免临愿泰壁"
    "饮简闹裤春欧守救插踩腾逐福既良敢碗附铺昌巨橙邦泥威读担森苦额岁洞松塔载贵句沿烤荆够剧辖错婚侣"
    "牵宜净曲坚判旗班孙某艘哈姑假顾测键爷阵换销险透典退怪含吴泡泉圣希版栓妈鸡宁蒙圆静楚枪厕矿毒顺"
    "朱丰厂洪输宋蹲败抽卷束录冷兄康烈雕沉禁归博评吗操紫永迪枝繁纳贴庆渐棍璃庭码遗舌述毕督否鞋探吐"
    "伯介洁怀移献跨雄忽丝襄甲季咱炉臣索叉裙祖玻鄂刷召扩乘袋吸恩诉固诗票烧柱础苹歌届泽吹刺湾减腿废"
    "迎障授痛伊艇陵库秘摸纹盒绵灵熟遇抓掉丽撑姓翔炮槽补睛颜唐软婴殿宽谷智奖握横俄摄雷夺骨针幅厚慢"
    "毫酸闭佛"
)

# 800 kanji: 97 % of the Han in captions.
JAPANESE = (
    "人性上男置車女色子中立白物乗道手路前一着機赤頭犬持台二大草座黒場飛走面見行歩屋木並電食水青雪"
    "建皿部停入横野生馬空時原海茶供小向黄計地山付理自猫壁下数止転緑広設器料花話匹動洗球板滑内所服"
    "列芝鳥少近外通側合傘飲牛辺標識街型選帯砂寝三携盛線窓打作間両帽出波切積凧年後椅室遊浜象机差顔"
    "囲真分便菜柵様船背何開写川取号本駐達羽鏡角書口信荷集羊火用園階足笑消構奥込瓶調姿四体脇庫具左"
    "駅丸右斜形掛高長飾複点客試示履栓冷蔵店揚振方周交抱引身看浮多岩明家棚熊石事灯果岸装載輪公沢画"
    "牧焼被関歯段幼投群箱気毛使模光紙首造製床操目金先類日端隣布字半植葉絵塔夜降景片港洋際張撮式柱"
    "観種席売森髪敷運像伸土扉旅勢指柄展橋組連風当寄越肉放照落塗個材暗返進茂文者描天微紫緒傍根枝楽"
    "枚整登握品貼業状映跳鉄腰挟薄若浴耳同沿央蒸庭鼻覆備雲煙眼房元灰貨古親国林表裸過戦肩袋銀散掲移"
    "影容網番正町円会待案闘磨競流警来雨棒太突渡曇曲名靴触晴練追旗有腕包暖習菓技丘老添基別炉井細航"
    "配留刺樹格断抜雑平泊吊湖居市餌縦飼負遠膝販縁枯舌読新巻活量衣団全員麗陸重児実回陰缶収脚枕噴防"
    "他察五丁納参編成統舗鍋坂制倒隻仕腹玉好低陽架瞬頓池隅注態畳泳守締漕眺官宅液械刻皮押味掃紺坊露"
    "傾夕槽受休工混崖厨鉢縞透覗英対互障害婦宙無急詰陶埋吹記魚汚盤芸施語教残決壇髭折射商蓋誰綱紐除"
    "咲陳利騎彼短舎飯反鞄隊学戸針支化衆的意接軍発属違等結舞畑離伏革主育彩審舟翼都枠卵晶眠然蹴族踏"
    "蝶深最河源捕暮捨演乳判繋胸挙逆塀心良干仰濡牽準掴美母穴十氷泥頂清筒華齢鳩速彫尻胴迷札変垂卓牙"
    "住禁跨燭聞隙乱乾穿銅六肌壊呂斑仲糸額粉尾浅汽闇丈世隠蝋軒相浸弾共沫筆念豪帆今田起興剥鮮士閉荒"
    "域肘鍵骨冊撫杯続挿桟縫説特末係管奏昔裏加門煉瓦駆買憩袖麦担垣撃褐尖巨途未談定渋冬畜豆専頬双弁"
    "代銃音廃塁幾滝疾和層現直玄感力樽固吸熟破戯視提焦鶏錆夫各紅粧救導絡術堂告印狭刀幹束澄噛助星裁"
    "父位漁仮初瀬系命妙郎童凍望在覧西盆湿"
)

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ISO_2022_JP = (b"\x1b$B", b"\x1b$@")  # escapes into kanji; the text between them is ASCII
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_SCORED_CHARACTERS = 2000  # enough to decide; the rest is decoded only

# Natural logarithms of the probability of one character.
_ASCII_LETTER, _SPACE, _ASCII_SIGN, _CONTROL = -3.2, -2.0, -5.0, -25.0
_CJK_SIGN, _HIRAGANA, _KATAKANA, _HALF_WIDTH_KANA = -5.0, -5.2, -6.3, -12.0
_LISTED_HAN = -0.2  # the share of the frequent characters among Han, to be divided by Zipf's law
_LEVEL_1, _LEVEL_2, _RARE, _FOREIGN = -11.0, -14.0, -17.0, -16.0
_ACCENT_IN_WORD, _ACCENT_ELSEWHERE, _LATIN_SIGN, _TYPOGRAPHIC = -5.5, -10.0, -11.0, -7.5
_INCOMPLETE = -12.0  # the last character lacks a byte, as in a field that was cut
_CJK_SIGNS = frozenset("、。,，．！？：；「」『』（）“”‘’…—～・ー《》【】　")
_LAST_LATIN = "\u024f"
_LATIN_TYPOGRAPHY = frozenset("’‘“”–—…«»°¡¿£€·")


def read_text(data: bytes) -> str:
    """The text, decoded by its byte order mark, as UTF-8, or by the most probable encoding.

    ASCII is ASCII even where it could be UTF-16 without a byte order mark, as in "Bush hid the
    facts".
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    if any(escape in data for escape in _ISO_2022_JP):
        return data.decode("iso2022_jp", errors="replace")
    text = _utf8(data)
    return _most_probable(data) if text is None else text


def _utf8(data: bytes) -> str | None:
    """UTF-8 that may be cut within its last character; None for what only looks like UTF-8.

    That is text with control characters, as UTF-16 has, or with letters of three and more
    alphabets, as GB 18030 with the right bytes has.
    """
    text = _decoded(data, "utf-8")
    if text is None or _CONTROLS.search(text.rstrip("\0")) or len(_alphabets(text)) > 2:
        return None
    return text if len(text.encode()) == len(data) or not text.isascii() else None


def _alphabets(text: str) -> set[str]:
    """CYRILLIC, GREEK, ...: the first words of the names of letters with two bytes in UTF-8."""
    return {unicodedata.name(c, "?").split()[0] for c in text if "\x7f" < c < "\u0800"}


def _decoded(data: bytes, encoding: str) -> str | None:
    """The text without an incomplete last character; None if the bytes are invalid."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeDecodeError:
        return None


def _most_probable(data: bytes) -> str:
    best, best_score = data.decode("latin-1"), float("-inf")
    for candidate in _CANDIDATES:
        text = _decoded(data, candidate.encoding)
        if text is None:
            continue
        score = candidate.prior + candidate.score(text[:_SCORED_CHARACTERS])
        if len(text) <= _SCORED_CHARACTERS and len(text.encode(candidate.encoding)) < len(data):
            score += _INCOMPLETE
        if score > best_score:
            best, best_score = text, score
    return best


def _sum(of: Callable[[str], float]) -> Callable[[str], float]:
    return lambda text: sum(map(of, text))


@cache
def _simplified_chinese(c: str) -> float:
    if not HAN.match(c):
        return _beside_han(c)
    return _ranked(c, CHINESE) or _by_level(c, "gb2312", b"\xd8")


@cache
def _traditional_chinese(c: str) -> float:
    if not HAN.match(c):
        return _beside_han(c)
    return _ranked(simplify(c), CHINESE) or _by_level(c, "big5", b"\xc9")


@cache
def _japanese(c: str) -> float:
    if "\uff61" <= c <= "\uff9f":
        return _HALF_WIDTH_KANA
    if KANA.match(c):
        return _HIRAGANA if c < "\u30a0" else _KATAKANA
    if not HAN.match(c):
        return _beside_han(c)
    listed = _ranked(c, JAPANESE)
    return listed - 1.0 if listed else _by_level(c, "euc_jp", b"\xd0")  # -1: a third is kanji


def _beside_han(c: str) -> float:
    """ASCII, full-width letters and punctuation in Chinese and Japanese text."""
    return _CJK_SIGN if c in _CJK_SIGNS or "\uff01" <= c <= "\uff5e" else _ascii(c)


def _ascii(c: str) -> float:
    if c > "\x7f":
        return _FOREIGN
    if c.isalpha():
        return _ASCII_LETTER
    if c < " ":
        return _SPACE if c in "\n\r\t" else _CONTROL
    return _SPACE if c == " " else _ASCII_SIGN


def _ranked(c: str, frequent: str) -> float | None:
    """Zipf's law with Mandelbrot's shift for a character of the list; None for another."""
    rank = _ranks(frequent).get(c)
    return None if rank is None else _LISTED_HAN - log((rank + 10) * log(len(frequent) / 10))


@cache
def _ranks(frequent: str) -> dict[str, int]:
    return {c: rank for rank, c in enumerate(frequent)}


def _by_level(c: str, charset: str, level_2: bytes) -> float:
    """The standards order characters in levels: common ones first, from `level_2` on others."""
    try:
        encoded = c.encode(charset)
    except UnicodeEncodeError:
        return _RARE
    return _LEVEL_1 if len(encoded) == 2 and encoded < level_2 else _LEVEL_2


def _european(text: str) -> float:
    """Latin text: most letters are ASCII, accented ones stand among them."""
    score, before = 0.0, " "
    for c in text:
        score += _european_letter(c, before)
        before = c
    return score


def _european_letter(c: str, before: str) -> float:
    if c <= "\x7f":
        return _ascii(c)
    if c in _LATIN_TYPOGRAPHY:
        return _TYPOGRAPHIC
    if not c.isalpha():
        return _LATIN_SIGN
    if c > _LAST_LATIN:
        return _FOREIGN
    beside_ascii = before <= "\x7f" and (before.isalpha() or before.isspace() or before in "'-(")
    # An accented capital within a word is as improbable as one that follows another accent.
    return _ACCENT_IN_WORD if beside_ascii and not _misplaced(c, before) else _ACCENT_ELSEWHERE


def _misplaced(c: str, before: str) -> bool:
    return c.isupper() and before.islower()


def _any_language(text: str) -> float:
    scores = (_sum(of)(text) for of in (_simplified_chinese, _traditional_chinese, _japanese))
    return max(*scores, _european(text))


@dataclass(frozen=True, slots=True)
class _Candidate:
    encoding: str
    score: Callable[[str], float]
    prior: float = 0.0


_CANDIDATES = (
    _Candidate("cp1252", _european),
    _Candidate("cp932", _sum(_japanese)),  # Shift-JIS with the characters of Windows
    _Candidate("gb18030", _sum(_simplified_chinese)),
    _Candidate("cp950", _sum(_traditional_chinese), -1.0),  # Big5 with those of Windows
    _Candidate("euc_jp", _sum(_japanese), -1.0),
    _Candidate("utf-16-le", _any_language, -3.0),
    _Candidate("utf-16-be", _any_language, -3.0),
)
