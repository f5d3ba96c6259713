"""`turn_limit` and `turn_extension` tell every agent its limit of turns, which is fixed or can be extended.

Source: More with Less (Gao and Peng, arXiv 2510.16786, from the abstract). How an agent asks for more turns is a choice
of this project: a line `More turns: N`. An extension costs only the words and turns themselves. Details:
docs/methods.md.

Expected effect: turns and tokens fall at equal accuracy.
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
    """The policy plays with a fixed limit of turns for each agent.

    Attributes:
        turns: largest number of turns of an agent.
        reminders: whether every turn is followed by the number of turns left; if not, only the prompt has a number.
    """

    turns: Count = 4
    reminders: bool = True

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_turns=self._max_turns)

    def prompt_variant(self, context: PlayContext) -> AddTurnLimit:
        return AddTurnLimit(self.turns, self._max_turns - self.turns, self.reminders)

    def check(self, context: PlayContext) -> None:
        limit = context.limits.max_turns
        if limit is not None and self._max_turns > limit:
            raise ConfigError(
                f"the strategy gives agents {self._max_turns} turns, and limits.max_turns is {limit}; raise it"
            )

    @property
    def _max_turns(self) -> int:
        """The largest number of turns of an agent, with its extension."""
        return self.turns


@stored_as("selfcest_training.evaluation.turns:TurnExtension", extension="extension")
@dataclass(frozen=True)
class TurnExtension(TurnLimit):
    """A turn limit that an agent can extend.

    Attributes:
        extension: largest number of further turns of an agent, in all its requests together.
    """

    extension: Count = 2

    @property
    def _max_turns(self) -> int:
        return self.turns + self.extension
