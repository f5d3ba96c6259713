"""`modes` chooses an instant, a reasoning or an agentic mode for every task, after A2FM (Chen et al., arXiv
2510.12838). If it works, easy tasks cost fewer tokens and hard ones keep their accuracy.

docs/methods.md has what the paper leaves open and what was chosen here.
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
from selfcest_methods.deciding import Deciding, Way, one_turn


@dataclass(frozen=True)
class Instant(Strategy):
    """No tools, one turn, few tokens."""

    delegates: ClassVar[bool] = False
    tokens: int

    def limits(self, limits: Limits, task: Task) -> Limits:
        return one_turn(Monolithic().limits(limits, task), self.tokens)


@stored_as(
    "selfcest_training.evaluation.modes:Modes", mode="mode", instant_tokens="instant_tokens", otherwise="otherwise"
)
@dataclass(frozen=True)
class Modes(Deciding):
    """Plays a task in one of three modes, by its own choice or by a fixed one.

    Attributes:
        mode: `adaptive`: the policy chooses for every task. Else no choice is asked for or paid.
        instant_tokens: of the one turn of the instant mode.
        otherwise: what an unreadable choice is taken for.

    Raises `ConfigError` for an option that a fixed mode has no use for.
    """

    mode: Literal["adaptive", "instant", "reasoning", "agentic"] = "adaptive"
    instant_tokens: Count = 32
    otherwise: Literal["instant", "reasoning", "agentic"] = "agentic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode != "adaptive":
            why = f"with mode {self.mode} no choice is asked for"
            check_unused(self, why, "decision_tokens", "otherwise")
        if self.mode in ("reasoning", "agentic"):
            check_unused(self, f"mode {self.mode} never plays the instant one", "instant_tokens")

    def ways(self) -> tuple[Way, ...]:
        return (
            Way("instant", Instant(self.instant_tokens), Note("Answer at once, without thinking.", 1)),
            Way("reasoning", Monolithic(), Note("Think step by step, then answer.", 2)),
            Way("agentic", Strategy(), Note("Use your tools where they help.", 3)),
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
        (way,) = [way for way in self.ways() if way.word == self.mode]
        return way.play(instances, context, player)

    def executed(self, episodes: Episodes) -> bool | None:
        return super().executed(episodes) if self.mode == "adaptive" else None
