"""Strategies: ways to spend one budget on a task. All play through the rollout and the kernel's ledger.

The budget is of the whole strategy: one that plays several episodes on a task gives each what the earlier ones left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from selfcest_agents.player import Player, PolicyWrapper
from selfcest_agents.rollout import RolloutRequest
from selfcest_env.errors import ConfigError, check_integer
from selfcest_env.graders import Grade
from selfcest_env.plugin import Registry
from selfcest_env.protocol import PromptFormat, PromptVariant
from selfcest_env.record import EpisodeRecord
from selfcest_env.seeding import stream_seed
from selfcest_env.stored import declared_name, stored_as, to_stored
from selfcest_env.tasks import ExpertSource, Style, TaskSource
from selfcest_env.types import Limits, Task

Episodes = tuple[EpisodeRecord, ...]  # those of one task, in the order in which they were played


@dataclass(frozen=True)
class Instance:
    """A task to play, and the seed of everything random about it."""

    task: Task
    seed: int

    @property
    def name(self) -> str:
        """What the ids of its episodes begin with, up to the last dot."""
        return f"{self.task.task_id}.{self.seed:x}"


@dataclass(frozen=True)
class PlayContext:
    """What a strategy plays under; it is known before a policy is loaded.

    Attributes:
        limits: of the whole strategy, budget included.
        temperature: of sampling.
        source: where the tasks come from, for strategies that ask its expert.
        protocol: how actions are written, for strategies that write some.
    """

    limits: Limits
    temperature: float
    source: TaskSource
    protocol: PromptFormat


@stored_as("selfcest_training.evaluation.strategies:Strategy")
@dataclass(frozen=True)
class Strategy:
    """One episode per task, as the policy plays it. Others are subclasses, whose fields are their options."""

    oracle: ClassVar[bool] = False  # it uses what no player can know; labelled so wherever its numbers stand
    uses_expert: ClassVar[bool] = False
    delegates: ClassVar[bool] = True  # where the limits allow it
    decides_first: ClassVar[bool] = False  # it writes down whether it delegates before it works
    in_series: ClassVar[bool] = False  # of several episodes each waits for the one before, and none is a sample
    # Raise it where equal options play or count as executed otherwise than before: a study that is resumed plays anew.
    version: ClassVar[int] = 0

    @property
    def identity(self) -> str:
        """The name of the strategy in keys of stored results.

        It is the name that the class declares by `stored_as`, else the name that a config gives: a registered one, or
        `package.module:Class` as the user wrote it. For a strategy without either it is read from the class.
        """
        declared = declared_name(type(self))
        if declared:
            return declared
        name: str | None = vars(self).get(_CONFIG_NAME)
        return f"{type(self).__module__}:{type(self).__qualname__}" if name is None else name

    @property
    def recipe(self) -> Mapping[str, object]:
        """All that decides how its episodes are played, the `PlayContext` apart. Equal recipes share episodes."""
        recipe = {"strategy": self.identity, **to_stored(self)}
        # Results that were stored before strategies had versions are found under a recipe without one.
        return {**recipe, "version": self.version} if self.version else recipe

    def limits(self, limits: Limits, task: Task) -> Limits:
        """What an episode on this task may use, of what the strategy may use."""
        return limits

    def check(self, context: PlayContext) -> None:
        """Raise `ConfigError` if the strategy could not be what it is named for."""

    def check_tasks(self, tasks: Sequence[Task], source: TaskSource) -> None:
        """Raise `ConfigError` if one of these tasks of a source must not be played, as one that was learned from."""
        for player in self.players():
            if player is not self:
                player.check_tasks(tasks, source)

    def players(self) -> tuple[Strategy, ...]:
        """Who plays in its name: itself, or all that it may hand an instance to."""
        return (self,)

    def styles(self) -> tuple[Style, ...]:
        """How its perfect player works, the source's expert in the policy's place; several if the policy may choose.

        None by default: an expert does not know how to play a strategy that it has not been told of.
        """
        return ()

    def wrapper(self, context: PlayContext) -> PolicyWrapper | None:
        """What stands around the player's policy; `None`: nothing."""
        return None

    def prompt_variant(self, context: PlayContext) -> PromptVariant | None:
        """What its episodes say around the policy's protocol, e.g. `AddTurnLimit`; `None`: nothing."""
        return None

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        """The episodes of every instance. Together they never use more than the context's limits."""
        return [
            (record,) for record in self.play_once(instances, [context.limits] * len(instances), 0, context, player)
        ]

    def play_once(
        self, instances: Sequence[Instance], limits: Sequence[Limits], sample: int, context: PlayContext, player: Player
    ) -> list[EpisodeRecord]:
        """One episode of every instance, each under limits of its own, all in one rollout."""
        requests, prompt_variant = [], self.prompt_variant(context)
        for instance, allowed in zip(instances, limits, strict=True):
            seed = stream_seed("sample", instance.seed, sample) if sample else instance.seed
            own = self.limits(allowed, instance.task)
            name = f"{instance.name}.{sample}"
            requests.append(RolloutRequest(name, instance.task, seed, own, prompt_variant=prompt_variant))
        return player.play(requests, context.temperature, wrap=self.wrapper(context))

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        """Which episode's answer counts. Strategies that look at `grades` are oracles."""
        return 0

    def waited(self, episodes: Episodes) -> bool:
        """Whether of an instance's episodes each had to wait for the one before."""
        return self.in_series

    def executed(self, episodes: Episodes) -> bool | None:
        """Whether its script was played as it was written; `None` for a strategy without one."""
        return None


@stored_as("selfcest_training.evaluation.strategies:Delegate")
@dataclass(frozen=True)
class DelegatingStrategy(Strategy):
    """The policy may delegate, as the limits say."""

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)

    def styles(self) -> tuple[Style, ...]:
        return (Style.DELEGATE,)


@stored_as("selfcest_training.evaluation.strategies:Monolithic")
@dataclass(frozen=True)
class Monolithic(Strategy):
    """No clones; the root sees the full text of every document."""

    delegates: ClassVar[bool] = False

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_depth=0, max_reads=0)

    def styles(self) -> tuple[Style, ...]:
        return (Style.SOLVE,)


@stored_as("selfcest_training.evaluation.strategies:MonolithicRead", max_reads="max_reads")
@dataclass(frozen=True)
class MonolithicRead(Strategy):
    """No clones; the root sees keys and reads documents into its own context.

    Attributes:
        max_reads: documents of one episode; `None`: as many as the budget pays.
    """

    delegates: ClassVar[bool] = False
    max_reads: int | None = None

    def __post_init__(self) -> None:
        if self.max_reads is not None:
            check_integer("max_reads", self.max_reads, 1, 2**31)

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_depth=0, max_reads=self.max_reads)

    def styles(self) -> tuple[Style, ...]:
        return (Style.READ,)


STRATEGIES = Registry(
    Strategy,
    "strategy",
    "selfcest.strategy",
    {
        "plain": "selfcest_eval.play.strategies:Strategy",
        "delegate": "selfcest_eval.play.strategies:DelegatingStrategy",
        "monolithic": "selfcest_eval.play.strategies:Monolithic",
        "monolithic_read": "selfcest_eval.play.strategies:MonolithicRead",
        "self_consistency": "selfcest_eval.play.samples:SelfConsistency",
        "best_of_n": "selfcest_eval.play.samples:BestOfN",
        "spawn_join": "selfcest_eval.play.scripted_roots:SpawnJoin",
        "map_reduce": "selfcest_eval.play.scripted_roots:MapReduce",
        "oracle_decomposition": "selfcest_eval.play.scripted_roots:OracleDecomposition",
        "always_delegates": "selfcest_eval.play.forced:AlwaysDelegates",
        "never_delegates": "selfcest_eval.play.forced:NeverDelegates",
    },
)


_CONFIG_NAME = "__config_name__"  # the attribute of a strategy that holds the name by which a config made it


def make_strategy(name: str, options: Mapping[str, object], where: str) -> Strategy:
    """A strategy by name or `package.module:Class`, with its options. Raises `ConfigError`."""
    strategy = STRATEGIES.make(name, options, where=f"{where}.options")
    # A frozen dataclass, and no field of it: fields are the options.
    object.__setattr__(strategy, _CONFIG_NAME, name)
    return strategy


def find_strategy(name: str) -> type[Strategy]:
    """The class of a strategy, by name or `package.module:Class`. Raises `ConfigError`, `PlugInError`."""
    return STRATEGIES.load(name)


def shown_name(label: str, strategy: Strategy | type[Strategy]) -> str:
    """The strategy's name in tables, plots and sentences: oracles are named so wherever a number of theirs stands."""
    return f"{label} (oracle)" if strategy.oracle else label


def expert_of(context: PlayContext) -> ExpertSource:
    """The source, if it has an expert. Raises `ConfigError` if it has none."""
    if isinstance(context.source, ExpertSource):
        return context.source
    raise ConfigError(
        f"{type(context.source).__name__} has no expert to play the root, or begin for it; name the families that have "
        "one in the strategy's families"
    )


def check_delegation(limits: Limits, clones: int) -> None:
    """Raise `ConfigError` if an agent could not call so many clones at once."""
    for name in ("max_depth", "max_clones", "max_clones_per_call"):
        limit, needed = getattr(limits, name), 1 if name == "max_depth" else clones
        if limit is not None and limit < needed:
            raise ConfigError(f"limits.{name} is {limit}, and the strategy needs at least {needed}; raise it")
