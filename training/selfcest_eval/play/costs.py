"""The costs of a strategy on an instance: those of every record, and those that a study adds by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from selfcest_env.errors import ConfigError, PlugInError
from selfcest_env.plugin import PlugIn, Registry
from selfcest_env.record import EpisodeRecord, Measure, cost_measures
from selfcest_env.stored import stored_as
from selfcest_env.structure import Between, Checked, Count, Name, NotNegative, Size
from selfcest_env.types import ROOT

MONEY = "money"  # the cost that a study's `price` adds
WALL = "wall_seconds"  # wall-clock time of the batch divided by its instances; it depends on machine and engine
Costs = Mapping[str, float]


@dataclass(frozen=True)
class EpisodeCost(Checked):
    """The base of costs that a study adds. The fields of a subclass are its options. See `record.Measure`."""

    compared: ClassVar[bool] = True

    def of(self, episode: EpisodeRecord) -> float:
        raise NotImplementedError(f"{type(self).__name__} has no of(episode)")

    def over_samples(self, values: Iterable[float]) -> float:
        return sum(values)

    def in_series(self, values: Iterable[float]) -> float:
        """Combine the costs of episodes each of which waits for the one before."""
        return self.over_samples(values)

    def check(self) -> None:
        """Raise `ConfigError` if the cost cannot be computed here. A study calls it before any work."""


@dataclass(frozen=True)
class PromptCache(EpisodeCost):
    """`billed_tokens` of a server that caches prompts per agent.

    The tokens that an agent's previous call sent or generated are cheaper. Its first call finds nothing in the cache,
    also if other agents sent the same tokens.

    Attributes:
        discount: discount on a cached token, from 0 to 1. At 1 the cost is `total_tokens`.
    """

    discount: Annotated[float, Between(0, 1)] = 0.9

    def of(self, episode: EpisodeRecord) -> float:
        cost = episode.cost
        return cost.billed_tokens - self.discount * (cost.billed_tokens - cost.total_tokens)


@stored_as(prompt="prompt", generated="generated", cached="cached", currency="currency")
@dataclass(frozen=True)
class Price(EpisodeCost):
    """The price of tokens. Every turn is a call that sends the agent's whole context.

    Attributes:
        prompt: price per million sent tokens.
        generated: price per million generated tokens.
        cached: price per million sent tokens that the agent's previous call sent or generated; `None`: as `prompt`, for
            a server without a cache.
        currency: name of the currency in tables.
    """

    prompt: NotNegative
    generated: NotNegative
    cached: NotNegative | None = None
    currency: Name = ""

    def of(self, episode: EpisodeRecord) -> float:
        cost = episode.cost
        # Of the tokens that turns send, `prompt_tokens` are new, and the others were in the agent's context before.
        resent_tokens = cost.billed_tokens - cost.total_tokens
        cached = self.prompt if self.cached is None else self.cached
        return (
            self.prompt * cost.prompt_tokens + cached * resent_tokens + self.generated * cost.generated_tokens
        ) / 1e6

    def __str__(self) -> str:
        cached = "with no cache" if self.cached is None else f"{self.cached:g} for cached ones"
        amount = f"{self.currency} {self.prompt:g}".strip()
        return f"{amount} per million tokens sent, {cached}, and {self.generated:g} for generated ones"


@dataclass(frozen=True)
class VisibleContext(EpisodeCost):
    """The largest number of keys that a decoding step of any agent sees: `peak_context`, bounded by the window.

    Attributes:
        window: `attention_window` of the model; `None` if a token sees the whole context.
        sinks: `attention_sinks` of the model.
    """

    window: Count | None = None
    sinks: Size = 0

    @property
    def max_keys(self) -> float:
        return math.inf if self.window is None else self.window + self.sinks

    def of(self, episode: EpisodeRecord) -> float:
        return min(episode.cost.peak_context, self.max_keys)

    def over_samples(self, values: Iterable[float]) -> float:
        return max(values)


@dataclass(frozen=True)
class VisibleTokenSteps(VisibleContext):
    """The keys that each decoding step sees, summed: `kv_token_steps` of a model with an attention window."""

    def of(self, episode: EpisodeRecord) -> float:
        steps = 0.0
        for agent in episode.agents:
            context = 0
            for turn in agent.turns:
                context += turn.facts.prompt_tokens
                for _ in range(turn.facts.generated_tokens):
                    steps += min(context, self.max_keys)
                    context += 1
        return steps

    def over_samples(self, values: Iterable[float]) -> float:
        return sum(values)


@dataclass(frozen=True)
class ConcurrentContext(EpisodeCost):
    """The largest sum of the contexts of all agents at one time, if nothing limits how many run at once.

    Every agent generates one token a step, and prompts take no time. The clones of a call start together, and their
    parent keeps its context while it waits. A context is freed after the last token of its agent. Samples run at once.
    """

    def of(self, episode: EpisodeRecord) -> float:
        # Events by step: growth of the sum per step from then on, and tokens that enter or leave at that step.
        rate_changes: dict[int, int] = {}
        entered: dict[int, int] = {}
        freed: dict[int, int] = {}
        start_by_agent = {ROOT: 0}
        # In tree order an agent comes before its clones, so its start is known.
        for agent in episode.agents:
            if agent.absent:
                continue
            step = start_by_agent[agent.agent_id]
            for turn in agent.turns:
                facts = turn.facts
                entered[step] = entered.get(step, 0) + facts.prompt_tokens
                rate_changes[step] = rate_changes.get(step, 0) + 1
                step += facts.generated_tokens
                rate_changes[step] = rate_changes.get(step, 0) - 1
                end = step
                for child in facts.children:
                    start_by_agent[child] = step
                    end = max(end, step + episode.critical_paths[child])
                step = end
            freed[step] = freed.get(step, 0) + agent.context_tokens
        largest = total = rate = previous = 0
        for step in sorted({*rate_changes, *entered, *freed}):
            total += rate * (step - previous)
            largest = max(largest, total)
            # A context that ends makes room for the prompts of the same step.
            total += entered.get(step, 0) - freed.get(step, 0)
            largest = max(largest, total)
            rate += rate_changes.get(step, 0)
            previous = step
        return largest

    def in_series(self, values: Iterable[float]) -> float:
        return max(values)


@dataclass(frozen=True)
class FailedEpisodes(EpisodeCost):
    """The number of episodes without an answer. `ended_*` of a report shows only the episode whose answer counts."""

    def of(self, episode: EpisodeRecord) -> float:
        return float(episode.answer is None)


COSTS = Registry(
    EpisodeCost,
    "cost",
    "selfcest.cost",
    {
        "prompt_cache": "selfcest_eval.play.costs:PromptCache",
        "price": "selfcest_eval.play.costs:Price",
        "visible_context": "selfcest_eval.play.costs:VisibleContext",
        "visible_token_steps": "selfcest_eval.play.costs:VisibleTokenSteps",
        "concurrent_context": "selfcest_eval.play.costs:ConcurrentContext",
        "failed_episodes": "selfcest_eval.play.costs:FailedEpisodes",
        "flops": "selfcest_eval.play.model_costs:Flops",
        "ideal_memory": "selfcest_eval.play.model_costs:IdealMemory",
    },
)


def measures_of(added: Mapping[str, PlugIn], price: Price | None = None) -> dict[str, Measure]:
    """Return every cost of a study by name: those of `record.Cost`, the added ones, and money.

    Raises:
        ConfigError: an added cost has a taken name or wrong options.
    """
    measures = dict(cost_measures())
    taken_names = {*measures, WALL}
    if price is not None:
        taken_names.add(MONEY)
    for name, spec in added.items():
        if name in taken_names:
            raise ConfigError(f"costs.{name}: there is a cost of this name; rename it")
        cost = COSTS.make(spec.name, spec.options, where=f"costs.{name}.options")
        measures[name] = _measure_of(cost)
    if price is not None:
        measures[MONEY] = _measure_of(price)
    return measures


def _measure_of(cost: EpisodeCost) -> Measure:
    return Measure(cost.of, cost.over_samples, cost.compared, cost.in_series)


def check_costs(added: Mapping[str, PlugIn]) -> None:
    """Raise `ConfigError` if an added cost of a study cannot be computed here; see `EpisodeCost.check`."""
    for name, spec in added.items():
        place = f"costs.{name}.options"
        try:
            COSTS.make(spec.name, spec.options, where=place).check()
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error


def costs_of(
    episodes: Sequence[EpisodeRecord],
    wall_seconds: float,
    measures: Mapping[str, Measure] | None = None,
    *,
    in_series: bool = False,
) -> Costs | None:
    """Return the costs of all episodes of an instance together, by name; `None` if no prompt fitted.

    Args:
        episodes: episodes of the instance.
        wall_seconds: wall-clock seconds of the instance.
        measures: measures by name; `None`: those of every record.
        in_series: whether each episode waited for the one before.

    Raises:
        PlugInError: a cost is not a finite number.
    """
    if not any(episode.root.turns for episode in episodes):
        return None
    costs: dict[str, float] = {}
    for name, measure in (cost_measures() if measures is None else measures).items():
        combine = measure.in_series if in_series and measure.in_series is not None else measure.over_samples
        costs[name] = combine(measure.of(episode) for episode in episodes)
        if not math.isfinite(costs[name]):
            raise PlugInError(f"the cost {name} of {episodes[0].episode_id} is {costs[name]}; expected a finite number")
    return {**costs, WALL: wall_seconds}


def cost_name(cost: str) -> str:
    """Return the name of a cost in tables and sentences."""
    return {WALL: "wall-clock seconds (of this machine)"}.get(cost, cost.replace("_", " "))


def at_most(budget: int | None) -> str:
    """Return the words for a budget in tables and sentences."""
    return "under its limits" if budget is None else f"at most {budget}"
