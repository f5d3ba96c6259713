"""Tables over made-up villages: one document each, a row for each that is named, a column for each thing that is asked.

A document says every attribute of its village in a sentence, in an order of its own, among sentences that say none of
them. The grader is `wide`: numbers are compared as numbers, words as texts. Nothing of a village is anywhere but in
its document, so every row can be filled in apart, and no document can be left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.graders.wide import write_table
from selfcest_env.structure import Between, check_order
from selfcest_env.tasks.source import draw_int, make_task
from selfcest_env.tasks.tables import TableExpert, TableQuestion, table_facts
from selfcest_env.types import Task
from selfcest_env.views import Observation

KEY = "village"
_FIRST = ("Al", "Bar", "Cor", "Dun", "Els", "Far", "Gar", "Hol", "Ing", "Kel", "Lam", "Mar", "Nor", "Or", "Pel", "Quar",
          "Ras", "Sel", "Tel", "Ul", "Var", "Wes", "Yar", "Zel")  # fmt: skip
_LAST = ("bach", "berg", "burn", "by", "combe", "dale", "den", "field", "ford", "gate", "ham", "holm", "land", "ley",
         "mere", "mouth", "stead", "stow", "ton", "wick")  # fmt: skip
NAMES = tuple(first + last for first in _FIRST for last in _LAST)
_PEOPLE = ("Ahl", "Berg", "Costa", "Dahl", "Ek", "Falk", "Grau", "Holt", "Ivers", "Juhl", "Kern", "Lund")
_GIVEN = ("Ada", "Bo", "Carl", "Dora", "Emil", "Frida", "Gerd", "Hans", "Ida", "Jens", "Karin", "Leo")
_WORDS = {
    "river": ("Arda", "Brenn", "Cale", "Dove", "Elva", "Frome", "Gila", "Hase", "Isen", "Jura", "Kyme", "Lune"),
    "market": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "trade": ("weaving", "fishing", "mining", "brewing", "farming", "quarrying", "pottery", "forestry"),
    "mayor": tuple(f"{given} {name}" for given in _GIVEN for name in _PEOPLE),
}
_NUMBERS = {"founded": (1100, 1950), "inhabitants": (100, 9999), "altitude": (2, 1800), "bridges": (2, 40)}
_SENTENCES = {
    "founded": "It was founded in {}.",
    "inhabitants": "It has {} inhabitants.",
    "altitude": "It lies {} metres above the sea.",
    "bridges": "Its bridges are {} in number.",
    "river": "The river {} runs past it.",
    "market": "There is a market every {}.",
    "trade": "Most people live from {}.",
    "mayor": "The mayor is {}.",
}
COLUMNS = tuple(_SENTENCES)
_PATTERNS = {name: re.compile(text.replace(".", r"\.").replace("{}", r"([^.]+)")) for name, text in _SENTENCES.items()}
NOTES = (
    "The school was painted last year.",
    "Visitors come by train.",
    "The bakery opens early.",
    "A storm took the roof of the old mill.",
    "The library lends boats in summer.",
    "Snow stays until spring.",
    "The choir sings in the barn.",
    "Two roads meet at the well.",
    "A painter lived here for a while.",
    "The inn has a green door.",
    "Storks nest on the chimney.",
    "The path to the quarry is closed.",
)
_NUMERIC = {"preprocess": ["extract_number"], "metric": ["number_near"], "criterion": 0.0}
_TEXT = {"preprocess": ["norm_str"], "metric": ["exact_match"]}
_Rows = Annotated[int, Between(1, 200)]
_Columns = Annotated[int, Between(1, len(COLUMNS))]


@dataclass(frozen=True)
class WideTables(TableExpert):
    """Source of tables over documents that are about one village each.

    Attributes:
        min_rows, max_rows: villages that the table is about.
        min_columns, max_columns: attributes that are asked for, beside the name.
        unnamed: documents of other villages.
        notes: sentences of each document that say nothing that is asked for.
    """

    name: ClassVar[str] = "wide_tables"
    min_rows: _Rows = 3
    max_rows: _Rows = 8
    min_columns: _Columns = 1
    max_columns: _Columns = 3
    unnamed: Annotated[int, Between(0, 200)] = 2
    notes: Annotated[int, Between(0, len(NOTES))] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("rows", "columns"):
            check_order(self, f"min_{what}", f"max_{what}")
        if self.max_rows + self.unnamed > len(NAMES):
            raise ConfigError(f"max_rows + unnamed is {self.max_rows + self.unnamed}; expected at most {len(NAMES)}")

    def draw(self, rng: np.random.Generator) -> Task:
        rows = draw_int(rng, self.min_rows, self.max_rows)
        asked = sorted(rng.permutation(len(COLUMNS))[: draw_int(rng, self.min_columns, self.max_columns)])
        names = [NAMES[i] for i in rng.permutation(len(NAMES))[: rows + self.unnamed]]
        facts = {name: _attributes(rng) for name in names}
        columns = tuple(COLUMNS[i] for i in asked)
        question = TableQuestion((KEY, *columns), tuple(names[:rows]))
        answer = write_table(
            question.columns, [(name, *(facts[name][column] for column in columns)) for name in question.keys]
        )
        context = {name: self._document(name, facts[name], rng) for name in sorted(names)}
        steps = {KEY: _TEXT} | {column: _NUMERIC if column in _NUMBERS else _TEXT for column in columns}
        return make_task(self.name, question.write(), answer, table_facts(question, steps, len(context)), context)

    def _document(self, name: str, facts: dict[str, str], rng: np.random.Generator) -> str:
        said = [_SENTENCES[column].format(value) for column, value in facts.items()]
        said += [NOTES[i] for i in rng.permutation(len(NOTES))[: self.notes]]
        return " ".join([f"{name} is a village.", *(said[i] for i in rng.permutation(len(said)))])

    def asked(self, observation: Observation) -> TableQuestion | None:
        question = TableQuestion.read(observation.brief.text)
        fits = question is not None and question.columns[0] == KEY and {*question.columns[1:]} <= {*COLUMNS}
        return question if fits else None

    def find(self, key: str, text: str, column: str) -> str | None:
        found = _PATTERNS[column].search(text)
        return found[1] if found else None


def _attributes(rng: np.random.Generator) -> dict[str, str]:
    numbers = {name: str(draw_int(rng, *span)) for name, span in _NUMBERS.items()}
    words = {name: words[draw_int(rng, 0, len(words) - 1)] for name, words in _WORDS.items()}
    return numbers | words
