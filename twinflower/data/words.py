"""What common values of a column mean, in several languages: whether an event happened, a yes or no, and the sex.

A text is compared without capitals, accents and spaces around it. Only a draft guesses so; a run uses its schema.
"""

import re
import unicodedata
from collections.abc import Collection

# Pairs of no and yes, of which an empty line separates one from the next
_WORDS = """
no n false f nein falsch non faux nao falso nee onwaar nej falsk nei ei nie falsz nem ne hayir нет nu ohi oxi 否 无
/
yes y true t ja j wahr oui vrai si s sim verdadero verdadeiro vero waar sand sant kylla k tak prawda igen ano evet
да da nai 是 有

f female woman girl w weiblich frau femme feminin mujer femenino donna femmina mulher feminino vrouw kvinna
/
m male man boy mannlich maennlich mann homme masculin hombre masculino uomo maschio homem mannelijk

alive living lives survived survivor lebt lebend lebendig uberlebt ueberlebt vivant vivante vivo viva vivente levend
leeft overleefd levende elossa zyje elo zije hayatta overlevde lever survecu sobrevivio sobreviveu sopravvissuto жив
/
dead died deceased death exitus expired tot gestorben verstorben tod mort morte decede decedee deces muerto muerta
fallecido fallecida muerte morto morta falecido obito deceduto decesso dood overleden dod avliden avled kuollut
zmarl zgon meghalt zemrel oldu умер

censored cnsr zensiert censure censuree censurado censurada censurato gecensureerd censureret censurerad цензур
/
event uncensored ereignis evenement evento gebeurtenis haendelse handelse handelsen событие

negative negativ negatif negativo negatief neg
/
positive positiv positif positivo positief pos

benign gutartig benin benigno goedaardig
/
malignant bosartig boesartig malin maligno kwaadaardig

healthy gesund sain sano gezond
/
ill sick diseased krank malade enfermo malato doente ziek

remission
/
relapse relapsed recurrence recurred progression progressed failure failed rezidiv recidive recidiva
"""
_NEGATIONS = {
    "no", "not", "non", "without", "free", "kein", "keine", "nicht", "ohne", "pas", "sans", "sin", "senza", "sem",
    "niet", "geen", "inte", "ingen",
}  # fmt: skip
_STARTS = {
    "start",
    "tstart",
    "starttime",
    "timestart",
    "entry",
    "entrytime",
    "begin",
    "begintime",
    "t0",
    "time0",
}
_Pair = tuple[set[str], set[str]]
_YES_NO, _SEX, *_OUTCOMES = [
    (set(less.split()), set(more.split()))
    for less, more in (pair.split("/") for pair in _WORDS.split("\n\n"))
]
_CODES = ({"0"}, {"1"})
_PAIRS: list[_Pair] = [
    (_YES_NO[0] | {"0"}, _YES_NO[1] | {"1"}),
    _SEX,
    *_OUTCOMES[:-1],
]  # of which all words of a side mean the same
_LETTERS = str.maketrans("øłı_", "oli ")
# columns with such names use 1 for either
_OPEN = re.compile("cens|zens|vital|surv|lost|withdr|drop|lfu|follow|admin|free|^non")


def folded(text: str) -> str:
    """The text without capitals, accents, underscores, and more than one space between words."""
    plain = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS))
    return " ".join("".join(letter for letter in plain if not unicodedata.combining(letter)).split())


def tokens(text: str) -> list[str]:
    """The folded parts of a text or of the name of a column, such as patient and id of patientId and of Patient_ID."""
    return re.findall(r"\w+", folded(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)))


def is_start(column: str) -> bool:
    """Whether a column with this name probably has the start of an interval of time, as in tables with several rows of
    a person."""
    return "".join(tokens(column)) in _STARTS


def is_event(text: str) -> bool | None:
    """Whether this value says that the event happened; None if it is not known, or if its parts contradict.

    A number before the words, as in 1: dead, does not count, and no, free and the like negate the words with them.
    """
    sides = _sides(text)
    return None if None in sides or len(sides) != 1 else sides.pop()


def _sides(text: str) -> set[bool | None]:
    parts = tokens(text)
    parts = [part for part in parts if not part.isdigit()] or parts
    others = [part for part in parts if part not in _NEGATIONS]
    if not others or len(parts) == 1:
        return {_side(part, [_YES_NO, _CODES, *_OUTCOMES]) for part in parts[:1]}
    negated = len(others) < len(parts)
    sides = {_side(part, _OUTCOMES) for part in others if len(part) > 1}  # not the d of d'événement
    return {None if side is None else side ^ negated for side in sides}


def events(column: str, values: Collection[str]) -> tuple[list[str], list[str]] | None:
    """The values of a column that say that the event happened, and those that say that it did not; None if it is not
    clear.

    In a column whose name says the opposite of an event, such as CNSR (CDISC) or alive, a 1, true or yes does as well.
    """
    sides = {value: is_event(value) for value in values}
    neutral = all(_side(folded(value), [_YES_NO, _CODES]) is not None for value in values)
    named = _sides(column) - {None} if neutral else {True}
    unclear = _OPEN.search(folded(column)) or _NEGATIONS & {*tokens(column)}
    if None in sides.values() or len(named) > 1 or (not named and unclear):
        return None
    happened = [value for value in values if sides[value] is (False not in named)]
    censored = [value for value in values if value not in happened]
    return (happened, censored) if happened and censored else None


def same_meaning(values: Collection[str]) -> list[list[str]]:
    """The values in groups, in the order of each group's first value; the values of a group mean the same.

    They differ in capitals, accents and spaces only. Or they are words of the same side of a pair, such as yes and no
    in some language. A pair applies if all values of the column are among its words, some on each side, and if no side
    has two different letters. If all values would be in one group, as with the genotypes AA, Aa and aa, each value
    stays a group of its own.
    """
    plain = {value: folded(value) for value in values}
    pair = next((candidate for candidate in _PAIRS if _applies(candidate, {*plain.values()})), None)
    groups: dict[object, list[str]] = {}
    for value, text in plain.items():
        groups.setdefault(_side(text, [pair]) if pair else text, []).append(value)
    return list(groups.values()) if len(groups) > 1 else [[value] for value in plain]


def _applies(pair: _Pair, texts: set[str]) -> bool:
    """Whether the texts are words of both sides, and no two different letters are on one side."""
    letters = [_side(text, [pair]) for text in texts if len(text) == 1 and text.isalpha()]
    return {_side(text, [pair]) for text in texts} == {False, True} and len(letters) == len({*letters})


def _side(text: str, pairs: Collection[_Pair]) -> bool | None:
    """Whether a folded text is among the second words of one of these pairs; None if it is among neither."""
    return next((side for pair in pairs for side in (False, True) if text in pair[side]), None)
