"""The perfect player of a strategy: the source's expert plays instead of the policy, without a model.

A strategy that stops early is cheap because it fails. So its costs are compared with those of a player that makes no
mistake. The player uses the same strategy, instances and limits, and its texts are counted in the policy's ids.
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

_BUDGET_LIMITS = ("total_tokens", "generated_tokens")
_LENGTH_LIMITS = ("context_tokens", "turn_tokens")
LIFTS = ((), _BUDGET_LIMITS, _LENGTH_LIMITS, _BUDGET_LIMITS + _LENGTH_LIMITS)  # tried in this order
# A lifted limit is multiplied and not removed: some prompts state the budget, and are cheaper without that sentence.
_LIFT_FACTOR = 1000


@dataclass(frozen=True, kw_only=True)
class ExpertPlayer(LocalPlayer):
    """A player that follows a script under the rules of a policy.

    Attributes:
        game: rules of the policy. Contexts may outgrow its model, since no model is used.
        actor: script of the player.
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
        """Do nothing: the player holds no resource."""


@dataclass(frozen=True)
class PerfectPlay:
    """The expert's play of an instance.

    Attributes:
        episodes: episodes of the strategy.
        grades: grades of the episodes.
        is_perfect: whether all episodes are right, in the style, and without a fault.
        lifted: limits that had to be lifted.
    """

    episodes: Episodes
    grades: tuple[Grade, ...]
    is_perfect: bool
    lifted: tuple[str, ...]


def styles_on(styles: Iterable[Style], limits: Limits, tasks: Sequence[Task]) -> tuple[Style, ...]:
    """Return the styles that can be played on the tasks under the limits.

    On tasks without documents, the style `read` becomes `solve`.
    """
    has_documents = any(task.context for task in tasks)
    is_possible = {
        Style.DELEGATE: limits.delegation,
        Style.READ: limits.reading,
        # A root that may delegate or read sees only the keys of documents.
        Style.SOLVE: not has_documents or not (limits.delegation or limits.reading),
    }
    playable: list[Style] = []
    for style in styles:
        if style is Style.READ and not has_documents:
            style = Style.SOLVE
        if is_possible[style] and style not in playable:
            playable.append(style)
    return tuple(playable)


def play_perfect_execution(
    strategy: Strategy, style: Style, instances: Sequence[Instance], context: PlayContext, rules: Rules, reward: Reward
) -> list[PerfectPlay]:
    """Let the expert play a strategy. An instance that does not fit is played again under lifted limits.

    Args:
        strategy: strategy with its scripts and samples.
        style: style of the expert.
        instances, context: see `Strategy.play`.
        rules: rules of the policy, under any limits.
        reward: reward, whose grader decides whether an answer is right.
    """
    if isinstance(context.source, ExpertSource):
        source = context.source
        lifts = _possible_lifts(context.limits)
    else:
        # A mixture of a source without an expert gives up on every task, also under lifted limits.
        source = Mixture((context.source,))
        lifts = [()]
    player = ExpertPlayer(game=rules, actor=OracleActor(source, context.protocol, style))
    play_at: dict[int, PerfectPlay] = {}
    for lifted in lifts:
        limits = replace(context.limits, **{name: _LIFT_FACTOR * getattr(context.limits, name) for name in lifted})
        remaining = [i for i in range(len(instances)) if i not in play_at or not play_at[i].is_perfect]
        played = strategy.play([instances[i] for i in remaining], replace(context, limits=limits), player)
        for i, episodes in zip(remaining, played, strict=True):
            grades = tuple(reward.grade(episode) for episode in episodes)
            all_right = all(grade.correct for grade in grades)
            if all_right and all(_in_style(style, episode) for episode in episodes):
                play_at[i] = PerfectPlay(episodes, grades, True, lifted)
            elif i not in play_at:
                # Of several failed plays the first counts, which is the one without lifted limits.
                play_at[i] = PerfectPlay(episodes, grades, False, ())
    return [play_at[i] for i in range(len(instances))]


def _possible_lifts(limits: Limits) -> list[tuple[str, ...]]:
    """Return the distinct sets of limits to lift. A limit of `None` cannot be lifted."""
    lifts: list[tuple[str, ...]] = []
    for names in LIFTS:
        lift = tuple(name for name in names if getattr(limits, name) is not None)
        if lift not in lifts:
            lifts.append(lift)
    return lifts


def _in_style(style: Style, episode: EpisodeRecord) -> bool:
    """Return whether the episode was played in the style and without a fault.

    An expert that lacks the tool of its style falls back on another style.
    """
    facts = [turn.facts for _, turn in episode.turns()]
    if any(fact.fault is not None or fact.refused for fact in facts):
        return False
    has_called = any(fact.outcome is Outcome.DELEGATED for fact in facts)
    has_read = any(fact.outcome is Outcome.READ for fact in facts)
    if style is Style.DELEGATE:
        return has_called
    if style is Style.READ:
        return not has_called and (has_read or not episode.task.context)
    return not has_called and not has_read
