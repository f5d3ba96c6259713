"""The perfect player of a strategy: the source's expert in the policy's place, by no model.

A strategy that stops early is cheap because it fails. So its costs stand beside those of who plays the same strategy on
the same instances under the same limits, writes in the policy's own ids, and makes no mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from selfcest_agents.codec import Codec
from selfcest_agents.player import LocalPlayer
from selfcest_agents.policy import Policy, ScriptedPolicy
from selfcest_agents.scripted import OracleActor
from selfcest_env.graders import Grade
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import Reward
from selfcest_env.rules import Rules
from selfcest_env.tasks import ExpertSource, Style
from selfcest_env.tasks.mixture import Mixture
from selfcest_env.types import Limits, Outcome, Task
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy

_BUDGET, _LENGTHS = ("total_tokens", "generated_tokens"), ("context_tokens", "turn_tokens")
LIFTS = ((), _BUDGET, _LENGTHS, _BUDGET + _LENGTHS)  # tried in this order
_FACTOR = 1000  # not without end: some prompts say the budget, and without that sentence they would be cheaper


@dataclass(frozen=True, kw_only=True)
class ExpertPlayer(LocalPlayer):
    """Plays a script by the rules that a policy plays by.

    Attributes:
        game: the policy's rules. Contexts may outgrow its model: none is asked.
        actor: the script.
    """

    game: Rules
    actor: OracleActor

    @property
    def codec(self) -> Codec | None:
        return self.game.counter if isinstance(self.game.counter, Codec) else None

    def rules(self, limits: Limits) -> Rules:
        return self.game.with_limits(limits)

    def policy(self, temperature: float) -> Policy:
        return ScriptedPolicy(self.actor, self.codec)

    def close(self) -> None:
        """It holds nothing."""


@dataclass(frozen=True)
class PerfectPlay:
    """What the expert made of an instance.

    Attributes:
        grades: one per episode.
        is_perfect: all are right, in the style, and without a fault.
        lifted: the limits that had to be lifted for it.
    """

    episodes: Episodes
    grades: tuple[Grade, ...]
    is_perfect: bool
    lifted: tuple[str, ...]


def styles_on(styles: Iterable[Style], limits: Limits, tasks: Sequence[Task]) -> tuple[Style, ...]:
    """Those of the styles that there are means for. Where there is nothing to read, who reads solves."""
    documents = any(task.context for task in tasks)
    means = {
        Style.DELEGATE: limits.delegation,
        Style.READ: limits.reading,
        Style.SOLVE: not documents or not (limits.delegation or limits.reading),  # else the root sees only their keys
    }
    found = dict.fromkeys(Style.SOLVE if style is Style.READ and not documents else style for style in styles)
    return tuple(style for style in found if means[style])


def play_perfect_execution(
    strategy: Strategy, style: Style, instances: Sequence[Instance], context: PlayContext, rules: Rules, reward: Reward
) -> list[PerfectPlay]:
    """Let the expert play a strategy; under lifted limits what does not fit under its own.

    Args:
        strategy: played as it is, scripts and samples included.
        style: of the expert.
        instances, context: as for `Strategy.play`.
        rules: those that the policy plays by, under whatever limits.
        reward: its grader says what is right.
    """
    # The expert of a mixture gives up on what none of its sources understands.
    source = context.source if isinstance(context.source, ExpertSource) else Mixture((context.source,))
    player = ExpertPlayer(game=rules, actor=OracleActor(source, context.protocol, style))
    lifts = [tuple(name for name in lift if getattr(context.limits, name) is not None) for lift in LIFTS]
    found: dict[int, PerfectPlay] = {}
    for lifted in dict.fromkeys(lifts if source is context.source else lifts[:1]):
        limits = replace(context.limits, **{name: _FACTOR * getattr(context.limits, name) for name in lifted})
        left = [i for i in range(len(instances)) if i not in found or not found[i].is_perfect]
        played = strategy.play([instances[i] for i in left], replace(context, limits=limits), player)
        for i, episodes in zip(left, played, strict=True):
            grades = tuple(reward.grade(episode) for episode in episodes)
            right = all(grade.correct for grade in grades)
            if right and all(_in_style(style, episode) for episode in episodes):
                found[i] = PerfectPlay(episodes, grades, True, lifted)
            else:
                found.setdefault(i, PerfectPlay(episodes, grades, False, ()))
    return [found[i] for i in range(len(instances))]


def _in_style(style: Style, episode: EpisodeRecord) -> bool:
    """Whether the episode was played so, and without a fault: an expert without the means falls back on others."""
    facts = [turn.facts for _, turn in episode.turns()]
    if any(fact.fault is not None or fact.refused for fact in facts):
        return False
    called = any(fact.outcome is Outcome.DELEGATED for fact in facts)
    read = any(fact.outcome is Outcome.READ for fact in facts)
    alone = not called and (read or not episode.task.context)
    return {Style.DELEGATE: called, Style.READ: alone, Style.SOLVE: not (read or called)}[style]
