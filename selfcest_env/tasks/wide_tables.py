"""Tables about fictional villages, with a document for each village and a column for each attribute in the question.

A document has a sentence for each attribute of its village, in random order, and sentences without any attribute. The
grader is `wide`, which compares numbers as numbers and words as texts. Only the village's own document has its
attributes. So every row can be filled in separately, and no document can be left out.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.graders.wide import write_table
from selfcest_env.structure import Between, check_order
from selfcest_env.tasks.source import draw_int, make_task
from selfcest_env.tasks.tables import TableExpert, TableQuestion, table_metadata
from selfcest_env.types import Task
from selfcest_env.views import Observation

KEY = "village"
_FIRST = ("Al", "Bar", "Cor", "Dun", "Els", "Far", "Gar", "Hol", "Ing", "Kel", "Lam", "Mar", "Nor", "Or", "Pel", "Quar",
          "Ras", "Sel", "Tel", "Ul", "Var", "Wes", "Yar", "Zel")  # fmt: skip
_LAST = ("bach", "berg", "burn", "by", "combe", "dale", "den", "field", "ford", "gate", "ham", "holm", "land", "ley",
         "mere", "mouth", "stead", "stow", "ton", "wick")  # fmt: skip
NAMES = tuple(map("".join, itertools.product(_FIRST, _LAST)))
_PEOPLE = ("Ahl", "Berg", "Costa", "Dahl", "Ek", "Falk", "Grau", "Holt", "Ivers", "Juhl", "Kern", "Lund")
_GIVEN = ("Ada", "Bo", "Carl", "Dora", "Emil", "Frida", "Gerd", "Hans", "Ida", "Jens", "Karin", "Leo")
_WORDS = {
    "river": ("Arda", "Brenn", "Cale", "Dove", "Elva", "Frome", "Gila", "Hase", "Isen", "Jura", "Kyme", "Lune"),
    "market": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "trade": ("weaving", "fishing", "mining", "brewing", "farming", "quarrying", "pottery", "forestry"),
    "mayor": tuple(map(" ".join, itertools.product(_GIVEN, _PEOPLE))),
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
        min_rows, max_rows: number of villages in the table.
        min_columns, max_columns: number of attributes, beside the name.
        unnamed: number of documents about other villages.
        notes: number of sentences without an attribute in each document.
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
        for quantity in ("rows", "columns"):
            check_order(self, f"min_{quantity}", f"max_{quantity}")
        if self.max_rows + self.unnamed > len(NAMES):
            raise ConfigError(f"max_rows + unnamed is {self.max_rows + self.unnamed}; expected at most {len(NAMES)}")

    def draw(self, rng: np.random.Generator) -> Task:
        num_rows = draw_int(rng, self.min_rows, self.max_rows)
        column_indices = sorted(rng.permutation(len(COLUMNS))[: draw_int(rng, self.min_columns, self.max_columns)])
        names = [NAMES[i] for i in rng.permutation(len(NAMES))[: num_rows + self.unnamed]]
        facts = {name: _draw_attributes(rng) for name in names}
        columns = tuple(COLUMNS[i] for i in column_indices)
        question = TableQuestion((KEY, *columns), tuple(names[:num_rows]))
        rows_of_truth: list[tuple[str, ...]] = []
        for name in question.keys:
            rows_of_truth.append((name, *(facts[name][column] for column in columns)))
        answer = write_table(question.columns, rows_of_truth)
        context = {name: self._write_document(name, facts[name], rng) for name in sorted(names)}
        steps = {KEY: _TEXT} | {column: _NUMERIC if column in _NUMBERS else _TEXT for column in columns}
        return make_task(self.name, question.write(), answer, table_metadata(question, steps, len(context)), context)

    def _write_document(self, name: str, facts: dict[str, str], rng: np.random.Generator) -> str:
        sentences = [_SENTENCES[column].format(value) for column, value in facts.items()]
        sentences += [NOTES[i] for i in rng.permutation(len(NOTES))[: self.notes]]
        return " ".join([f"{name} is a village.", *(sentences[i] for i in rng.permutation(len(sentences)))])

    def read_question(self, observation: Observation) -> TableQuestion | None:
        question = TableQuestion.read(observation.brief.text)
        fits = question is not None and question.columns[0] == KEY and {*question.columns[1:]} <= {*COLUMNS}
        return question if fits else None

    def find_value(self, key: str, text: str, column: str) -> str | None:
        match = _PATTERNS[column].search(text)
        return match[1] if match else None


def _draw_attributes(rng: np.random.Generator) -> dict[str, str]:
    numbers = {name: str(draw_int(rng, *span)) for name, span in _NUMBERS.items()}
    words = {name: words[draw_int(rng, 0, len(words) - 1)] for name, words in _WORDS.items()}
    return numbers | words
