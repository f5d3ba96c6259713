"""Grade answers that are one number, with or without a unit: GSM8K, AIME.

The patterns below collect the words and signs that change the meaning of a number next to them. Most of them come from
wrong answers that earlier versions accepted; `benchmarks/odd_forms.json` and the tests hold these answers.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from selfcest_env.graders.boxed import extract_final_answer, extract_last_boxed
from selfcest_env.graders.grade import NO_ANSWER, Grade
from selfcest_env.graders.latex import asks_for_percent, normalise
from selfcest_env.graders.vocabulary import has_only_known_words
from selfcest_env.structure import Checked
from selfcest_env.types import Task

MAX_CHARACTERS = 1000

_DIGITS = r"(?!0)[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9])|[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_DASHES = "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"  # hyphens, figure dash, en dash, minus signs
# `1.8e1`, `1.8 x 10^1`, `1.8 \times 10^{1}` and `1.8 × 10¹`.
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_POWER_OF_TEN = re.compile(
    rf"(?<=[0-9])(?:[eE](?P<e>[-+]?[0-9]{{1,3}})(?![\w.,]*[0-9])"
    rf"|\s?(?:\\times|\\cdot|[×·*xX])\s?10\s?(?:(?:\^|\*\*)\s?[{{(]?(?P<caret>[{_DASHES}+]?[0-9]{{1,3}})[)}}]?"
    r"|(?P<raised>[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3})))(?![0-9])"
)
_NUMBER = re.compile(_DIGITS)
# Markup that strikes out, hides, raises or lowers digits, so that they do not mean the number they write.
_ALTERED = re.compile(
    r"~~|(?<![\w~])~[^\s~](?:[^~\n]*[^\s~])?~(?![\w~])|<!--|</?(?:s|del|strike|sup|sub)>", re.IGNORECASE
)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_BOLD_ITALIC = re.compile(r"(?<![\w)*])\*\*\*([^*]+)\*\*\*(?![\w(*])")
_POWER_OF_UNIT = re.compile(r"(?<=[0-9])(\s?(?:[mcdk]?m|in|ft|yd|mi))\s?\^\s?\{?[23]\}?")  # `18 cm^2`
_ITALIC = re.compile(r"(?<![\w)*])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w(*])|(?<!\w)_{1,2}([^_]+)_{1,2}(?!\w)")
_PRESENTATION = re.compile(
    r"\\(?:therefore|implies|Rightarrow|rightarrow|approx|textdollar|pounds)(?![A-Za-z])|[-=]+>|[→⇒∴]"
)
_CURRENCY = "$£€¥₹₩¢"

_WORD_NUMBERS = (
    r"(?:zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:[- ]\w+)?|hundred|thousand|(?:m|b|tr)illion|dozen)"
)
_PARTS = r"(?:half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?)"
_FILLERS = (
    r"(?:\s+(?:be|been|being|equals?|equal\s+to|exactly|precisely|quite|just|actually|really|necessarily|as\s+much\s+as"
    r"|as\s+many\s+as|come\s+to|amount\s+to|add\s+up\s+to|total|the|an?|of|about|around|even|number|value))*"
)
_FALSE = r"(?:wrong|incorrect|false|untrue|mistaken|mistake|error|invalid)"
# Words before a number that change its value. Only space, brackets, quotes and a currency may separate them from it.
_REFUSED_BEFORE = tuple(
    re.compile(rf"(?<![\w'’])(?:{words})[\s-]*$", re.IGNORECASE)
    for words in (
        rf"(?:not|never|nor|neither|cannot|hardly|by\s+no\s+means|no\s+longer|no\s+way|\w*n['’]t){_FILLERS}",
        r"(?:not|never|\w*n['’]t|no)\s+[A-Za-z]+(?:\s+it\s+is)?|none\s+of|no|nobody\s+\w+|doubt\s+it\s+is",
        rf"{_FALSE}(?:\s+(?:answer|guess|result|solution|value|number|to\s+say))?\s*(?::|is|was|would\s+be)?",
        r"(?:any|every)(?:thing|\s+number|\s+value)\s+but|except(?:\s+for)?|excluding|other\s+than|rather\s+than|instead\s+of|without",
        r"unequal\s+to|different\s+from|far\s+from|short\s+of|close\s+to|almost|nearly|not\s+quite|barely",
        r"than(?:\s+(?:or\s+equal\s+to|about|around|roughly|the|an?))*|at\s+least|at\s+most|under|below|above|beneath|beyond|exceed(?:s|ing)?|(?<!adds\s)(?<!add\s)(?<!sums\s)(?<!sum\s)(?<!comes\s)up\s+to|less|more|fewer",
        r"a\s+minimum\s+of|a\s+maximum\s+of|minimum|maximum",
        r"half|double|twice|thrice|triple|treble|quadruple|(?:half|twice|thrice|\w+\s+times)\s+as\s+(?:many|much)(?:\s+\w+)?\s+as|(?:half|double|twice|triple)\s+(?:of|the|that|this)",
        rf"{_PARTS}\s+(?:of|the)(?:\s+the)?",
        r"(?:square|cube|root|power|powers|reciprocal|inverse|opposite|negative|negation|multiple|multiples|factor|factors|divisor"
        r"|divisors|logarithm|log|factorial|absolute\s+value|complement|percent|per\s+cent|percentage|fraction|%|[½⅓⅔¼¾⅕⅛])\s+of"
        r"(?:\s+the)?",
        r"times|multiplied\s+by|divided\s+by|over\s+the|modulo|mod|raised\s+to|to\s+the\s+power(?:\s+of)?|choose",
        r"(?:number|integer|value|day|one)\s+(?:before|after)(?:\s+the)?",
        r"sqrt|square\s+root|cube\s+root|root|log|ln|exp|sin|cos|tan|abs|factorial|squared?|cubed?|base",
        r"non|sub|mid|pre|post|anti|point|neg|negated|\((?:minus|negative)\)",
        rf"{_WORD_NUMBERS}\s*(?:,|or|and|to|plus|minus|point|out\s+of|of|in|from|added\s+to|subtracted\s+from)(?:\s+the)?",
        r"one\s*(?:out\s+of|in|or|and|to|plus|minus|point|-)(?:\s+the)?",
        r"(?<!\w)[A-Za-z]\s+(?:plus|minus|or)",
    )
)
_WORD_NUMBER_BEFORE = re.compile(rf"(?<!\w){_WORD_NUMBERS}[\s-]*$", re.IGNORECASE)  # but "eighteen (18)"
_OVER = re.compile(r"(?<!\w)(?:just\s+|well\s+)?over\s*$", re.IGNORECASE)  # "over 18 weeks" is a span of time
_TIME = re.compile(
    r"\s*-?\s*(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|sessions?|trips?)\b", re.IGNORECASE
)
_SYMBOL_BEFORE = re.compile(r"(?:[!</>~:]=|=/=|<>|[<>≤≥≠≢≮≯⩽⩾≲≳≪≫≦≧±∓√∛∜∑∏∫∂∆*×·÷/^¬|∖%‰&✗✘❌✖]|[A-Za-z]_|\+/-)\s*$")
_LETTERS_BEFORE = re.compile(r"(?:[^\W\d]|_)+$")
_CURRENCY_CODES = {"usd", "eur", "gbp", "us", "rs", "inr", "aud", "cad", "jpy", "chf", "cny"}
_SIGN_WORD = re.compile(r"(?:^|(?<=[\s(\[{=:\"'“,]))(?P<word>minus|negative|plus|positive)[\s-]*$", re.IGNORECASE)
_OPENING = re.compile(rf"[\s(\[{{\"'“‘{_CURRENCY}]*$")
_SIGN = re.compile(rf"(?P<sign>[{_DASHES}+])(?P<space>\s*)$")

_BEFORE_SPACED_SIGN = re.compile(r"(?:[=(:\[{,]|\b(?:is|be|was|equals|of|to))\s*$")

_PERCENT = re.compile(r"\s*-?\s*(?:\\?[%％٪]|(?:per\s?cent|pct|percentage\s+points?)\b)", re.IGNORECASE)
_UNIT_LETTERS = "hgmsdlLCFWVcp"
_REFUSED_AFTER = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"[\s-]*(?:k|hundreds?|thousands?|\w{1,6}illions?|mio|mn|bn|mln|dozens?|lakhs?|crores?|grand|tens)\b(?!-[A-Za-z])",
        r"[\s-]*(?:squared|cubed|factorials?|sqrt|root|halves|thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths"
        r"|(?:hundred|thousand|million|billion|trillion)ths|per\s+thousand|ppm|reciprocal|ln|log|sin|cos|(?:half|third|quarter)s?\s+of|basis\s+points?|bps|pp|per\s+mille|pi|choose)\b",
        r"\s*(?:raised\s+to|to\s+the\s+(?:(?:\w+\s+)?power|second|third|fourth|fifth|tenth|n?th)\b|(?:in\s+)?base\b|in\s+(?:hex|octal|binary|hexadecimal))",
        r"[\s,]*(?:or|and)\s+(?:more|less|fewer|above|below|over|under|up|upwards?|greater|higher|lower|another)\b",
        rf"[\s(]*(?:[-,/+*]|or|and|to|plus|minus|times|over|point|divided\s+by|multiplied\s+by|less|(?:more|less|fewer)\s+than"
        rf"|mod(?:ulo)?)[\s-]*(?:an?\s+|one\s+)?(?:{_WORD_NUMBERS}|{_PARTS})\b(?!\s+(?:dollars?|cents?|\w+s)\s+(?:each|per))",
        r"[\s(]*(?:plus|minus|times|over|divided\s+by|multiplied\s+by|mod(?:ulo)?)\s+(?:one|[b-z])\b(?!['’])",
        r"\s*(?:is|was|are|would\s+be)\s*(?:n['’]t|\s*not)\s+(?:correct|right|the|it|my|our|possible|true|what|enough)\b",
        rf"\s*(?:is|was|are|would\s+be)\s+(?:{_FALSE}|impossible|too\s+(?:low|high|small|large|big|little|many|few|much))\b",
        # "18, which is wrong", "18. That is a mistake", "18, a wrong result", but not "18 answers were wrong"
        rf"[^\n]*?(?:\b(?:is|was|['’]s)\s+(?:an?\s+)?|[,;(–—]\s*an?\s+){_FALSE}\b",
        r"\s*(?:°\s?[CFK]|degrees?(?:\s+(?:Celsius|Fahrenheit))?)?\s+below\s+zero\b",
        r"[\s(-]*(?:doubled|halved|tripled|quadrupled|negated|reversed|swapped|(?:but\s+)?negative)\b",
        rf"\s*(?:[<>≤≥≠≢⩽⩾≲≳≪≫≦≧±√∛×·÷^*+‰✗✘❌✖]|!=|/=|[{_DASHES}]\s*(?:[A-Za-z]\b|\(|$))",
        r"[|(_]",
        # another value: "18 or XIX", "18, perhaps seventeen", "18; nineteen"
        r"[\s,;.(]*(?:or\b(?!\s+so\b(?!\s+more\b)|,)|alternatively|possibly|perhaps|maybe)",
        rf"[^\w(]{{1,4}}(?:{_WORD_NUMBERS}|one|oh|naught)[\s.!]*$",
        r"[\s(]*in\s+(?:hundreds|thousands|\w{1,6}illions)\b",
        r"['’]s\s+(?:square|cube|half|root|reciprocal|double|inverse)\b",
        r"[\s,(?]*(?:no|not|wrong|incorrect|false)\)?[\s.!]*$",
        r"[\s,(]*(?:plus|minimum|maximum|max|at\s+(?:the\s+)?(?:least|most|minimum|maximum))\)?[\s.!]*$",
    )
)
_SLASH = re.compile(rf"\s*/\s*(?![A-Za-z]{{2,}}|[{_UNIT_LETTERS}]\b|\))")
_LETTER_AFTER = re.compile(rf"(?![{_UNIT_LETTERS}]\b|st\b|nd\b|rd\b|th\b)[A-Za-z]\b")
_LATER_SYMBOL = re.compile(rf"\s(?![{_UNIT_LETTERS}])[B-Zb-z]\s?(?:[<>]|$)")
_NAMES_WITH_DIGITS = re.compile(r"(?:st|nd|rd|th)\b")
_ORDINAL_SHARE = re.compile(r"(?<!\w)(?:an?|one|half)\s+$", re.IGNORECASE)
_COMMAND = re.compile(r"\\[A-Za-z]")
_CALL = re.compile(r"[A-Za-z]\(\s*$|!$")


def parse_only_number(
    text: str, *, drop_percent: bool = True, prose: bool = False, sources: tuple[str, ...] | None = None
) -> Fraction | None:
    """Return the value of the only number of a text, or `None` if there is no such number or its meaning is changed.

    Thousands commas and leading zeros are allowed. A sign, "minus", "negative" and powers of ten (`1.8e1`) count. A
    negation, a comparison, a fraction, a power, a scale ("18 million") or another operand next to the number changes
    its meaning.

    Args:
        text: an answer.
        drop_percent: whether a percent sign is only a unit, as in answers to a question for a percentage. Otherwise the
            value is divided by 100.
        prose: whether the text continues a sentence, so that a final `!` is not a factorial.
        sources: texts such as the question. If given, a text with a word that `has_only_known_words` does not know has
            no value.
    """
    if _ALTERED.search(text):
        return None
    text = _strip_markup(text)
    if _has_another_numeral(text):
        return None
    powers_of_ten = list(_POWER_OF_TEN.finditer(text))
    if len(powers_of_ten) > 1:
        return None
    exponent = 0
    if powers_of_ten:
        power = powers_of_ten[0]
        digits = (power["e"] or power["caret"] or power["raised"]).translate(_SUPERSCRIPTS)
        exponent = int(re.sub(f"[{_DASHES}]", "-", digits))
        text = text[: power.start()] + text[power.end() :]
    if sources is not None and not has_only_known_words(text, *sources):
        return None
    numbers = list(_NUMBER.finditer(text))
    if len(numbers) != 1 or _COMMAND.search(text):
        return None
    before = text[: numbers[0].start()]
    after = text[numbers[0].end() :]
    if _CALL.search(before):
        return None
    sign = _sign_before(before)
    if sign is None or _changed_by_symbols(before, after):
        return None
    percent = _PERCENT.match(after)
    if percent:
        after = after[percent.end() :]
    if any(pattern.match(after) for pattern in _REFUSED_AFTER) or _is_factorial(before, after, prose):
        return None
    # "over 18" is a comparison, but "over 18 weeks" names a span of time.
    if _OVER.search(_OPENING.sub("", before)) and not _TIME.match(after):
        return None
    # "a 5th" is a share, "the 5th" is a number.
    if _NAMES_WITH_DIGITS.match(after) and _ORDINAL_SHARE.search(before):
        return None
    value = sign * Fraction(numbers[0][0].replace(",", "")) * Fraction(10) ** exponent
    return value / 100 if percent and not drop_percent else value


def _strip_markup(text: str) -> str:
    """Return the text without HTML, Markdown and LaTeX markup."""
    text = html.unescape(_TAG.sub(" ", text.replace("{,}", ",")))
    text = _BOLD_ITALIC.sub(r"\1", text)
    text = normalise(_ITALIC.sub(lambda match: match[1] or match[2], text))
    return _POWER_OF_UNIT.sub(r"\1", _PRESENTATION.sub(" ", text))


def _has_another_numeral(text: str) -> bool:
    """Return whether a text has a numeral of another script or form, such as `١٩`, `Ⅸ`, `⑲` or `½`; `m²` is a unit."""
    previous = ""
    for character in text:
        if not character.isascii() and character.isnumeric():
            is_power_of_unit = character in "²³" and previous.isalpha()
            is_exponent = character in "⁰¹²³⁴⁵⁶⁷⁸⁹" and (previous.isdecimal() or previous in "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺")
            if not is_power_of_unit and not is_exponent:
                return True
        previous = character
    return False


def _sign_before(before: str) -> int | None:
    """Return the sign of a number, 1 or -1; `None` if the text before the number changes its meaning."""
    bare = _OPENING.sub("", before)
    num_negations = 0
    sign = _SIGN.search(bare)
    if sign and _is_sign(bare[: sign.start()], before[sign.end() :], sign["space"]):
        num_negations += sign["sign"] != "+"
        bare = _OPENING.sub("", bare[: sign.start()])
        if _SIGN.search(bare) or re.search(r"(?<!\w)[b-hj-zB-HJ-Z]$", bare):
            return None
    elif sign:
        bare = bare[: sign.start()]
        # `x-18` and `(x)-18` are differences.
        if re.search(r"(?<!\w)[A-Za-z]\s*$|[)\]}]\s*$", bare):
            return None
        # A dash with space around it is punctuation: "the result - 18 dollars".
        if sign["space"] or bare.endswith(" "):
            return 1
    else:
        letters = _LETTERS_BEFORE.search(before)
        if letters and letters[0].lower() not in _CURRENCY_CODES:
            return None
    sign_word = _SIGN_WORD.search(bare)
    if sign_word:
        num_negations += sign_word["word"].lower() in ("minus", "negative")
        rest = bare[: sign_word.start()].rstrip()
        if _SIGN_WORD.search(rest) or re.search(r"(?:^|[\s(=])[A-Za-z]$|[)\]}]$", rest):
            return None
        if re.search(rf"(?<!\w)(?:one|{_WORD_NUMBERS})$", rest, re.IGNORECASE):
            return None
        bare = rest
    if num_negations > 1 or any(pattern.search(bare) for pattern in _REFUSED_BEFORE):
        return None
    if _WORD_NUMBER_BEFORE.search(bare) and "(" not in before[len(bare) :]:
        return None
    if _SYMBOL_BEFORE.search(bare):
        return None
    return -1 if num_negations else 1


def _is_sign(before: str, between: str, space: str) -> bool:
    """Return whether a dash is a sign, as in "=-18" and "is -18", unlike "the result - 18 dollars" and "year-18"."""
    if re.search(r"[\w)\]}]$", before):
        return False
    has_space = bool(space or between[:1].isspace())
    return not has_space or not before.strip() or bool(_BEFORE_SPACED_SIGN.search(before))


def _changed_by_symbols(before: str, after: str) -> bool:
    """Return whether a raised digit, a vulgar fraction, a combining mark or a letter is attached to a number."""
    for character in (*before.rstrip()[-1:], *after.lstrip()[:1], *after[:1]):
        if unicodedata.category(character) in ("No", "Nl", "Mn", "Me"):
            return True
        if character.isdecimal() or character in "πμ√∛∞⁻₋⁺₊":
            return True
    return bool(_SLASH.match(after) or _LETTER_AFTER.match(after) or _LATER_SYMBOL.match(after))


def _is_factorial(before: str, after: str, prose: bool) -> bool:
    """Return whether `!` right after a number is a factorial and not the end of a sentence."""
    if not after.startswith("!"):
        return False
    in_sentence = prose or bool(re.search(r"[A-Za-z]{2,}", before))
    return not in_sentence or bool(after[1:].strip("!\"'”’ .*)")[:1])


@dataclass(frozen=True)
class NumberMatch(Checked):
    """Right if the only number of the final answer equals the truth or an alias.

    "$2,125.00", "025", "18 dollars", "1.8e1" and "minus 18" are 2125, 25, 18, 18 and -18. An answer with two numbers or
    an expression has no value, and neither have "not 18", "half of 18" and "18 million". A percent sign divides by 100,
    unless the question asks for a percentage.

    Attributes:
        strict: whether to refuse words other than those of the question, units and plain words such as "she has" and
            "per day". For training, because any other word could deny the number or offer a second one.
    """

    strict: bool = False

    def grade(self, task: Task, answer: str | None) -> Grade:
        percent = asks_for_percent(task.prompt)
        truths = {parse_only_number(text, drop_percent=percent) for text in (task.answer, *task.aliases)}
        if None in truths:
            raise ValueError(
                f"the ground truths are {(task.answer, *task.aliases)}; expected only numbers, use the grader 'math'"
            )
        if answer is None:
            return NO_ANSWER
        text = extract_final_answer(answer)
        if len(text) > MAX_CHARACTERS:
            return Grade(0.0, correct=False, well_formed=False, note="answer too long")
        prose = text != answer and extract_last_boxed(answer) is None
        sources = (task.prompt,) if self.strict else None
        value = parse_only_number(text, drop_percent=percent, prose=prose, sources=sources)
        return Grade(float(value in truths), value in truths, value is not None)
