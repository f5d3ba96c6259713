"""`turn_limit` and `turn_extension` tell agents a limit of turns, fixed or extensible, after More with Less (Gao and
Peng, arXiv 2510.16786). If it works, turns and tokens fall at equal accuracy.

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.text.prompt_variants import AddTurnLimit
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import PlayContext, Strategy


@stored_as("selfcest_training.evaluation.turns:TurnLimit", turns="turns", reminders="reminders")
@dataclass(frozen=True)
class TurnLimit(Strategy, Checked):
    """The policy plays within a fixed number of turns of each agent, and is told before every turn how many are left.

    Attributes:
        turns: of one agent.
        reminders: whether what is left is told after every turn; without it the number is told once, at the start.
    """

    turns: Count = 4
    reminders: bool = True

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_turns=self._most)

    def prompt_variant(self, context: PlayContext) -> AddTurnLimit:
        return AddTurnLimit(self.turns, self._most - self.turns, self.reminders)

    def check(self, context: PlayContext) -> None:
        most = context.limits.max_turns
        if most is not None and self._most > most:
            raise ConfigError(f"the strategy gives agents {self._most} turns, and limits.max_turns is {most}; raise it")

    @property
    def _most(self) -> int:
        return self.turns


@stored_as("selfcest_training.evaluation.turns:TurnExtension", extension="extension")
@dataclass(frozen=True)
class TurnExtension(TurnLimit):
    """As `TurnLimit`, and an agent that asks for more turns is given them.

    Attributes:
        extension: further turns of one agent, however often it asks.
    """

    extension: Count = 2

    @property
    def _most(self) -> int:
        return self.turns + self.extension
