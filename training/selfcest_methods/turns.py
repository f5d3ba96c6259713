"""Turn control (Gao and Peng, More with Less, arXiv 2510.16786): a fixed limit of turns, or one that can be extended.

Against an agent without a limit the paper sets a fixed limit, told after every turn, and a limit that is extended on
demand. The limit is a percentile of the turns that unlimited agents took, the 75th by its choice. Its abstract and
what others say of it could be read and not its sections, so how an agent asks is ours: a line `More turns: N` in a
turn.

An extension has no price of its own. It costs the words that ask for it, the reminders, and the turns themselves, all
charged to the agent's account; and a turn that can still be extended keeps room for a notice and one more answer, so
asking never leads where the account cannot follow. In a tree a limit is of every agent and not of the tree: a clone
has as many turns as its root, and what it asks for is its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.text.prompt_variants import TellTurns
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

    def prompt_variant(self, context: PlayContext) -> TellTurns:
        return TellTurns(self.turns, self._most - self.turns, self.reminders)

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
