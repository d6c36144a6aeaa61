"""English or another language in Latin letters, by function words and accented letters.

Meant for captions, where names of people and places in other languages are frequent: a text
counts as another language only if the evidence for it is more than that for English.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache, lru_cache

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
