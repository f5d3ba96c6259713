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
from selfcest_env.structure import Between, Checked, Name, NotNegative

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


COSTS = Registry(
    EpisodeCost,
    "cost",
    "selfcest.cost",
    {"prompt_cache": "selfcest_eval.play.costs:PromptCache", "price": "selfcest_eval.play.costs:Price"},
)


def measures_of(added: Mapping[str, PlugIn], price: Price | None = None) -> dict[str, Measure]:
    """Return every cost of a study by name: those of `record.Cost`, the added ones, and money.

    Raises:
        ConfigError: an added cost has a taken name or wrong options.
    """
    measures = cost_measures()
    taken_names = {*measures, WALL}
    if price is not None:
        taken_names.add(MONEY)
    for name, spec in added.items():
        if name in taken_names:
            raise ConfigError(f"costs.{name}: there is a cost of this name; rename it")
        cost = COSTS.make(spec.name, spec.options, where=f"costs.{name}.options")
        measures[name] = Measure(cost.of, cost.over_samples, cost.compared)
    if price is not None:
        measures[MONEY] = Measure(price.of, price.over_samples, price.compared)
    return measures


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
