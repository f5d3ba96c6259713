"""What a strategy used on an instance: the costs of its episodes' records, and those that a study adds by name."""

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
WALL = "wall_seconds"  # of the batch, divided by its instances; it depends on machine, engine and batch
Costs = Mapping[str, float]


@dataclass(frozen=True)
class EpisodeCost(Checked):
    """A cost of one's own: a subclass whose fields are its options. See `record.Measure` for the three members."""

    compared: ClassVar[bool] = True

    def of(self, episode: EpisodeRecord) -> float:
        raise NotImplementedError(f"{type(self).__name__} has no of(episode)")

    def over_samples(self, values: Iterable[float]) -> float:
        return sum(values)


@dataclass(frozen=True)
class PromptCache(EpisodeCost):
    """`billed_tokens` of a server that remembers: what an agent's previous call had sent or generated is cheaper.

    An agent's first call finds nothing, whatever other agents have sent.

    Attributes:
        discount: on the price of a cached token, from 0 to 1; at 1 the bill is `total_tokens`.
    """

    discount: Annotated[float, Between(0, 1)] = 0.9

    def of(self, episode: EpisodeRecord) -> float:
        cost = episode.cost
        return cost.billed_tokens - self.discount * (cost.billed_tokens - cost.total_tokens)


@stored_as(prompt="prompt", generated="generated", cached="cached", currency="currency")
@dataclass(frozen=True)
class Price(EpisodeCost):
    """A bill in money: so much per million tokens. Every turn is a call that sends the agent's whole context.

    Attributes:
        prompt: of a token that is sent.
        generated: of one that is generated.
        cached: of a sent one that the agent's own previous call had sent or generated; `None`: as `prompt`, for a
            server that keeps nothing between calls. An agent's first call finds nothing.
        currency: for tables.
    """

    prompt: NotNegative
    generated: NotNegative
    cached: NotNegative | None = None
    currency: Name = ""

    def of(self, episode: EpisodeRecord) -> float:
        cost = episode.cost
        # Of what turns send, `prompt_tokens` are new, and the rest was in the agent's context before.
        again = cost.billed_tokens - cost.total_tokens
        cached = self.prompt if self.cached is None else self.cached
        return (self.prompt * cost.prompt_tokens + cached * again + self.generated * cost.generated_tokens) / 1e6

    def __str__(self) -> str:
        known = "with no cache" if self.cached is None else f"{self.cached:g} for cached ones"
        amount = f"{self.currency} {self.prompt:g}".strip()
        return f"{amount} per million tokens sent, {known}, and {self.generated:g} for generated ones"


COSTS = Registry(
    EpisodeCost,
    "cost",
    "selfcest.cost",
    {"prompt_cache": "selfcest_eval.play.costs:PromptCache", "price": "selfcest_eval.play.costs:Price"},
)


def measures_of(added: Mapping[str, PlugIn], price: Price | None = None) -> dict[str, Measure]:
    """Every cost of a study by name: those of `record.Cost`, its own, and money. Raises `ConfigError`."""
    found = cost_measures()
    taken = {*found, WALL, *([] if price is None else [MONEY])}
    for name, spec in added.items():
        if name in taken:
            raise ConfigError(f"costs.{name}: there is a cost of this name; rename it")
        cost = COSTS.make(spec.name, spec.options, where=f"costs.{name}.options")
        found[name] = Measure(cost.of, cost.over_samples, cost.compared)
    if price is not None:
        found[MONEY] = Measure(price.of, price.over_samples, price.compared)
    return found


def costs_of(
    episodes: Sequence[EpisodeRecord],
    wall_seconds: float,
    measures: Mapping[str, Measure] | None = None,
    *,
    in_series: bool = False,
) -> Costs | None:
    """Costs of all episodes together, by name; `None` if nobody was asked, since no prompt fitted.

    `in_series`: each had to wait for the one before.
    """
    if not any(episode.root.turns for episode in episodes):
        return None
    costs: dict[str, float] = {}
    for name, measure in (cost_measures() if measures is None else measures).items():
        together = measure.in_series if in_series and measure.in_series is not None else measure.over_samples
        costs[name] = together(measure.of(episode) for episode in episodes)
        if not math.isfinite(costs[name]):
            raise PlugInError(f"the cost {name} of {episodes[0].episode_id} is {costs[name]}; expected a finite number")
    return {**costs, WALL: wall_seconds}


def cost_name(cost: str) -> str:
    return {WALL: "wall-clock seconds (of this machine)"}.get(cost, cost.replace("_", " "))


def at_most(budget: int | None) -> str:
    return "under its limits" if budget is None else f"at most {budget}"
