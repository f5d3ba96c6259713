"""`modes` has the policy choose an instant, a reasoning or an agentic mode for every task.

Source: A2FM (Chen et al., arXiv 2510.12838), with a fixed mode as in its released code. In the paper one turn names the
mode and works in it. Here the choice is an episode of its own. The credit scheme `adaptive_reward` has the paper's
training, for two modes. Details: docs/methods.md.

Expected effect: tasks for which the policy names a cheaper mode cost fewer tokens, with the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from selfcest_agents.player import Player
from selfcest_env.protocol import Note
from selfcest_env.stored import stored_as
from selfcest_env.structure import Count, check_unused
from selfcest_env.types import Limits, Task
from selfcest_eval.play.strategies import Episodes, Instance, Monolithic, PlayContext, Strategy
from selfcest_methods.deciding import DecisionStrategy, WorkMode, limit_to_one_turn


@dataclass(frozen=True)
class Instant(Strategy):
    """One turn without tools.

    Attributes:
        tokens: largest number of tokens of the turn.
    """

    delegates: ClassVar[bool] = False
    tokens: int

    def limits(self, limits: Limits, task: Task) -> Limits:
        return limit_to_one_turn(Monolithic().limits(limits, task), self.tokens)


@stored_as(
    "selfcest_training.evaluation.modes:Modes", mode="mode", instant_tokens="instant_tokens", otherwise="otherwise"
)
@dataclass(frozen=True)
class Modes(DecisionStrategy):
    """The policy plays a task in one of three modes.

    Attributes:
        mode: `adaptive`, the policy chooses for every task; or a fixed mode, without an episode that chooses.
        instant_tokens: largest number of tokens of the turn of the instant mode.
        otherwise: the mode for a choice that cannot be read.

    Raises:
        ConfigError: an option has no effect with this fixed mode.
    """

    mode: Literal["adaptive", "instant", "reasoning", "agentic"] = "adaptive"
    instant_tokens: Count = 32
    otherwise: Literal["instant", "reasoning", "agentic"] = "agentic"

    def __post_init__(self) -> None:
        super().__post_init__()
        # An option without an effect is refused, because a study would store the same play twice, under two recipes.
        if self.mode != "adaptive":
            check_unused(self, f"with mode {self.mode} no choice is asked for", "decision_tokens", "otherwise")
        if self.mode in ("reasoning", "agentic"):
            check_unused(self, f"mode {self.mode} never plays the instant one", "instant_tokens")

    def work_modes(self) -> tuple[WorkMode, ...]:
        return (
            WorkMode("instant", Instant(self.instant_tokens), Note("Answer at once, without thinking.", 1)),
            WorkMode("reasoning", Monolithic(), Note("Think step by step, then answer.", 2)),
            WorkMode("agentic", Strategy(), Note("Use your tools where they help.", 3)),
        )

    def question(self) -> Note:
        return Note(
            "Do not solve the task yet. First choose how: instant, if it needs no thought; reasoning, if it needs "
            "thought and no tools; agentic, if it needs tools. Answer with one word: instant, reasoning or agentic.",
            0,
        )

    def fallback(self) -> str:
        return self.otherwise

    def check(self, context: PlayContext) -> None:
        if self.mode in ("adaptive", "agentic"):
            super().check(context)

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        if self.mode == "adaptive":
            return super().play(instances, context, player)
        fixed_mode = next(mode for mode in self.work_modes() if mode.word == self.mode)
        return fixed_mode.play(instances, context, player)

    def executed(self, episodes: Episodes) -> bool | None:
        return super().executed(episodes) if self.mode == "adaptive" else None
