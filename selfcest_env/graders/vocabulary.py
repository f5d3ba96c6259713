"""Check in training that an answer has only words which cannot change its number.

These are the words of the question and the words of a fixed list.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

MAX_SOURCE_CHARACTERS = 5000  # from the end of a prompt, which holds the question
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_POSSESSIVE = re.compile(r"['’]s?$")
_ENDING = re.compile(r"(?<=[a-z]{3})(?:ing|ed|es|e|s)$")
# Words that never change a value.
_PLAIN = """
    a an the i we you he she it they his her their its my our your this that these those there here who which and so
    then thus hence therefore is are was were be been has have had get gets got give gives gave make makes made need
    needs take takes took cost costs will can equal equals total sum altogether overall all exactly precisely final
    answer result solution left leaving leaves remain remains remaining old apiece together in on at of for to with
    per each every by day daily weekly ad bc est about around approximately roughly it's that's there's only now still
    also think okay ok yes sure ans correct difference product average remainder amount area volume perimeter
"""
_UNITS = """
    mm cm m km in ft yd mi g kg mg lb lbs oz l ml s h hr hrs min mins sec secs mph kmh usd eur gbp us rs inr p c f
    dollar dollars cent cents euro euros pound pounds percent second seconds minute minutes hour hours day days week
    weeks month months year years mile miles meter meters metre metres kilometer kilometers kilometre kilometres foot
    feet inch inches yard yards gram grams kilogram kilograms ounce ounces liter liters litre litres square cubic
    degree degrees celsius people person inhabitants unit units point points time times th st nd rd
"""
# Words that deny a value, offer a choice or change a value. They are refused even if the question has them.
_NEVER = """
    not no never nor neither none cannot or either wrong incorrect false except but unless if maybe perhaps possibly
    minus negative plus doubled halved
"""
_NUMBER_WORD = re.compile(
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|\w+illion|dozen|score|third|quarter|fourth|fifth"
    r"|sixth|tenth|once|twice|half|double|zero|oh|naught)s?"
)
_PLAIN_WORDS = frozenset([*_PLAIN.split(), *_UNITS.split()])
_CHANGING_WORDS = frozenset(_NEVER.split())
_HARMLESS = re.compile(r"[\s\w.,:;!'’\"“”()\[\]*#`$£€¥₹¢%°²³/=~≈✓✔✅\\{}+−–—-]*")


def has_only_known_words(text: str, *sources: str) -> bool:
    """Return whether an answer has only known words and harmless symbols.

    A word is known if it is a plain word, or if a source has it in any inflection. A number in words is known only
    before the same word as in a source ("two brothers"). Harmless symbols are punctuation, currencies and units.

    Args:
        text: an answer.
        sources: texts such as the question. Only the last `MAX_SOURCE_CHARACTERS` of each are read.
    """
    # The name of `x = 18` and the exponent of `m²` are no words.
    text = re.sub(r"^\W*[A-Za-z]\s*=|[²³]", "", text.lower())
    if not _HARMLESS.fullmatch(text) or re.search(r"[0-9][^=]*=", text):
        return False
    words = _words(text)
    vocabularies = [_vocabulary(source[-MAX_SOURCE_CHARACTERS:]) for source in sources]
    for word, following in pairwise([*words, ""]):
        if word in _CHANGING_WORDS or word.endswith(("n't", "n’t")):
            return False
        if _NUMBER_WORD.fullmatch(word):
            if not any((word, following) in pairs for _, pairs in vocabularies):
                return False
        elif word not in _PLAIN_WORDS and not any(_stem(word) in stems for stems, _ in vocabularies):
            return False
    return True


@lru_cache(maxsize=256)
def _vocabulary(source: str) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """Return the stems of a text's words and the pairs of adjacent words."""
    words = _words(source.lower())
    return frozenset(map(_stem, words)), frozenset(pairwise(words))


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _stem(word: str) -> str:
    """Return a word without its ending: "makes" and "making" have the stem of "make", and "Tom's" has that of "Tom"."""
    return _ENDING.sub("", _POSSESSIVE.sub("", word))
