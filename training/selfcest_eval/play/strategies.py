"""Strategies: ways to spend one budget on a task. All of them play through the rollout and the kernel's ledger.

The budget bounds the whole strategy. If it plays several episodes on a task, each gets the rest of the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from selfcest_agents.player import Player, PolicyWrapper
from selfcest_agents.rollout import RolloutRequest
from selfcest_env.errors import BudgetError, ConfigError, PlugInError, check_integer
from selfcest_env.graders import Grade
from selfcest_env.plugin import Registry
from selfcest_env.protocol import PromptFormat, PromptVariant
from selfcest_env.record import EpisodeRecord
from selfcest_env.seeding import stream_seed
from selfcest_env.stored import declared_name, stored_as, to_stored
from selfcest_env.tasks import ExpertSource, Style, TaskSource
from selfcest_env.types import Limits, Task

Episodes = tuple[EpisodeRecord, ...]  # the episodes of one task, in the order of play


@dataclass(frozen=True)
class Instance:
    """A task to play, with the seed of all its randomness."""

    task: Task
    seed: int

    @property
    def name(self) -> str:
        """The beginning of the ids of its episodes, up to the last dot."""
        return f"{self.task.task_id}.{self.seed:x}"


@dataclass(frozen=True)
class PlayContext:
    """The context of a strategy, which is known before a policy is loaded.

    Attributes:
        limits: limits of the whole strategy, budget included.
        temperature: sampling temperature.
        source: source of the tasks, for strategies that use its expert.
        protocol: prompt format, for strategies that write actions.
    """

    limits: Limits
    temperature: float
    source: TaskSource
    protocol: PromptFormat


@stored_as("selfcest_training.evaluation.strategies:Strategy")
@dataclass(frozen=True)
class Strategy:
    """The strategy that plays one episode per task, and the base of all others.

    The fields of a subclass are its options.
    """

    # Whether it uses information that no player can have. Every report marks its numbers.
    oracle: ClassVar[bool] = False
    # Whether it uses the expert of the source.
    uses_expert: ClassVar[bool] = False
    # Whether it delegates where the limits allow it.
    delegates: ClassVar[bool] = True
    # Whether it writes down the choice to delegate before it works.
    decides_first: ClassVar[bool] = False
    # Whether its episodes depend on each other and are played one after the other, unlike independent samples.
    in_series: ClassVar[bool] = False
    # Whether a task whose prompt does not fit the limits is an error of the config, and no instance that fails.
    must_fit: ClassVar[bool] = False
    # Raise it when a change of the code makes the same options play, or count as executed, differently. A resumed study
    # then plays the strategy again.
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
        """Everything besides the `PlayContext` that decides its episodes. Strategies with equal recipes share them."""
        recipe = {"strategy": self.identity, **to_stored(self)}
        # Earlier versions stored results under a recipe without a version.
        return {**recipe, "version": self.version} if self.version else recipe

    def limits(self, limits: Limits, task: Task) -> Limits:
        """Return the limits of an episode on this task, within the limits of the strategy."""
        return limits

    def check(self, context: PlayContext) -> None:
        """Raise `ConfigError` if the strategy cannot be played in this context, for example without delegation."""

    def check_tasks(self, tasks: Sequence[Task], source: TaskSource) -> None:
        """Raise `ConfigError` if a task must not be played, for example because the strategy learned from it."""
        for player in self.players():
            if player is not self:
                player.check_tasks(tasks, source)

    def players(self) -> tuple[Strategy, ...]:
        """Return the strategies that play its instances: itself, or all strategies that it may hand an instance to."""
        return (self,)

    def styles(self) -> tuple[Style, ...]:
        """Return the styles of the expert that plays it perfectly; several if the policy may choose.

        The default is none, since an expert cannot play a strategy that it does not know.
        """
        return ()

    def wrapper(self, context: PlayContext) -> PolicyWrapper | None:
        """Return the wrapper of the player's policy, if there is one."""
        return None

    def prompt_variant(self, context: PlayContext) -> PromptVariant | None:
        """Return the prompt variant of its episodes, such as `AddTurnLimit`, if there is one."""
        return None

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        """Return the episodes of every instance. Those of one instance never exceed the context's limits together."""
        records = self.play_once(instances, [context.limits] * len(instances), 0, context, player)
        return [(record,) for record in records]

    def play_once(
        self, instances: Sequence[Instance], limits: Sequence[Limits], sample: int, context: PlayContext, player: Player
    ) -> list[EpisodeRecord]:
        """Play one episode of every instance, all of them in one call of the player.

        Args:
            instances: instances to play.
            limits: limits of the strategy on each instance.
            sample: number of the sample; each has a seed of its own.
            context: context of the strategy.
            player: player of the policy.
        """
        prompt_variant = self.prompt_variant(context)
        requests = []
        for instance, strategy_limits in zip(instances, limits, strict=True):
            # Sample 0 has the seed of the instance: a strategy that plays once would play the same episode.
            seed = stream_seed("sample", instance.seed, sample) if sample else instance.seed
            episode_limits = self.limits(strategy_limits, instance.task)
            name = f"{instance.name}.{sample}"
            requests.append(RolloutRequest(name, instance.task, seed, episode_limits, prompt_variant=prompt_variant))
        return player.play(requests, context.temperature, wrap=self.wrapper(context))

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        """Return the position of the episode whose answer counts. A strategy that reads `grades` is an oracle."""
        return 0

    def ran_in_series(self, episodes: Episodes) -> bool:
        """Return whether each of these episodes waited for the one before."""
        return self.in_series

    def executed(self, episodes: Episodes) -> bool | None:
        """Return whether the game executed the whole script; `None` for a strategy without a script."""
        return None


def check_played(name: str, played: object, num_instances: int, limits: Limits) -> None:
    """Check what `Strategy.play` has returned.

    Args:
        name: label of the strategy, for the message.
        played: what it returned.
        num_instances: number of instances that it was given.
        limits: limits of all episodes of an instance together.

    Raises:
        PlugInError: it is no list of one tuple of episodes for each instance.
        BudgetError: the episodes of an instance took more tokens than the limits allow.
    """
    if not isinstance(played, Sequence) or len(played) != num_instances:
        count = f"{len(played)} results" if isinstance(played, Sequence) else type(played).__name__
        raise PlugInError(f"strategy '{name}': play returned {count}; expected a list of {num_instances}, as instances")
    for episodes in played:
        if not isinstance(episodes, tuple) or not episodes or not all(isinstance(e, EpisodeRecord) for e in episodes):
            raise PlugInError(
                f"strategy '{name}': play returned {type(episodes).__name__} for an instance; expected a tuple of its "
                "EpisodeRecords"
            )
        for measure in ("total_tokens", "generated_tokens"):
            limit: int | None = getattr(limits, measure)
            spent = sum(episode.cost_of(measure) for episode in episodes)
            if limit is not None and spent > limit:
                raise BudgetError(
                    f"strategy '{name}': its episodes of {episodes[0].task.task_id} have {measure} = {spent} together, "
                    f"and its limits allow {limit}; its limits() must stay within those that it is given"
                )


@stored_as("selfcest_training.evaluation.strategies:Delegate")
@dataclass(frozen=True)
class DelegatingStrategy(Strategy):
    """The policy may delegate within the limits."""

    def check(self, context: PlayContext) -> None:
        check_delegation(context.limits, 1)

    def styles(self) -> tuple[Style, ...]:
        return (Style.DELEGATE,)


@stored_as("selfcest_training.evaluation.strategies:Monolithic")
@dataclass(frozen=True)
class Monolithic(Strategy):
    """A root without clones, which sees the full text of every document."""

    delegates: ClassVar[bool] = False

    def limits(self, limits: Limits, task: Task) -> Limits:
        return replace(limits, max_depth=0, max_reads=0)

    def styles(self) -> tuple[Style, ...]:
        return (Style.SOLVE,)


@stored_as("selfcest_eval.play.strategies:FullReader")
@dataclass(frozen=True)
class FullReader(Monolithic):
    """`Monolithic`, but a study whose texts are longer than the limits or the model's window is refused."""

    must_fit: ClassVar[bool] = True


@stored_as("selfcest_training.evaluation.strategies:MonolithicRead", max_reads="max_reads")
@dataclass(frozen=True)
class MonolithicRead(Strategy):
    """A root without clones, which sees the keys of documents and reads documents into its own context.

    Attributes:
        max_reads: number of documents that one episode may read; `None`: bounded by the budget only.
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
        "full_reader": "selfcest_eval.play.strategies:FullReader",
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


_CONFIG_NAME = "__config_name__"  # attribute with the name of a strategy in the config


def make_strategy(name: str, options: Mapping[str, object], where: str) -> Strategy:
    """Return a strategy by name or `package.module:Class`, with its options. Raises `ConfigError`."""
    strategy = STRATEGIES.make(name, options, where=f"{where}.options")
    # It is not a field, since fields are the options. The dataclass is frozen, so `setattr` would raise.
    object.__setattr__(strategy, _CONFIG_NAME, name)
    return strategy


def display_name(label: str, strategy: Strategy | type[Strategy]) -> str:
    """Return the strategy's name in tables, plots and sentences. Oracles are marked in all of them."""
    return f"{label} (oracle)" if strategy.oracle else label


def quote_name(name: str) -> str:
    """Return a name in quotes if it has a comma, which would end it in a list."""
    return f'"{name}"' if "," in name else name


def expert_of(context: PlayContext) -> ExpertSource:
    """Return the source, which must have an expert. Raises `ConfigError` if it has none."""
    if isinstance(context.source, ExpertSource):
        return context.source
    raise ConfigError(
        f"{type(context.source).__name__} has no expert, which the strategy needs for the root; name only families "
        "with an expert in the strategy's families"
    )


def check_delegation(limits: Limits, clones: int) -> None:
    """Raise `ConfigError` if the limits forbid a call of so many clones."""
    for name, needed in (("max_depth", 1), ("max_clones", clones), ("max_clones_per_call", clones)):
        limit = getattr(limits, name)
        if limit is not None and limit < needed:
            raise ConfigError(f"limits.{name} is {limit}, and the strategy needs at least {needed}; raise it")
