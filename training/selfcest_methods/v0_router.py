"""`v0_router` hands each task to the strategy with the highest predicted worth, after V_0 (arXiv 2602.03584). If it
works, its reward is above that of every single strategy.

    worth(strategy, task) = p(strategy, task) - price * units(strategy, task) / 1000
    p, units: regressions (logistic, linear) on family, size, number of documents and budget, one each per strategy

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from selfcest_agents.player import Player
from selfcest_env.errors import ConfigError, SelfcestError, did_you_mean
from selfcest_env.graders import Grade
from selfcest_env.plugin import PlugIn
from selfcest_env.stored import stored_as
from selfcest_env.structure import Above, Checked, NotNegative
from selfcest_env.tasks import TaskSource
from selfcest_env.types import Limits, Task
from selfcest_eval.play.costs import Costs
from selfcest_eval.play.digest import digest
from selfcest_eval.play.results import Result, read_results
from selfcest_eval.play.strategies import Episodes, Instance, PlayContext, Strategy, make_strategy
from selfcest_methods.state_zero import TaskValue, cell_of

_BOTH = {"monolithic": PlugIn("monolithic"), "delegate": PlugIn("delegate")}


@stored_as(
    "selfcest_training.evaluation.v0_router:V0Router",
    history="history",
    strategies="strategies",
    cost="cost",
    price="price",
    ridge="ridge",
)
@dataclass(frozen=True)
class V0Router(Strategy, Checked):
    """Attributes:
    history: results of an earlier study, its `results.jsonl`; empty: none.
    strategies: by the names that they have in the history, each with its `name` and `options`; `None`: `monolithic` and
        `delegate`.
    cost: whose units have a price.
    price: accuracy that a thousand units are worth.
    ridge: of the regressions, in instances.
    """

    history: str = ""
    strategies: Annotated[Mapping[str, PlugIn] | None, "null: monolithic and delegate"] = None
    cost: str = "total_tokens"
    price: NotNegative = 0.0
    ridge: Annotated[float, Above(0)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inside:
            raise ConfigError("strategies is empty; name at least one to route to")
        for label, strategy in self.inside.items():
            if strategy.oracle or strategy.uses_expert:
                raise ConfigError(
                    f"strategies.{label} needs what no player can know, an expert or the grades; expected strategies "
                    "that a policy plays by itself"
                )
        _ = self._known  # what is wrong with the history is wrong with the config

    @property
    def recipe(self) -> Mapping[str, object]:
        inside = [[label, strategy.recipe] for label, strategy in self.inside.items()]  # of equals the first plays
        return {**super().recipe, "history": self._digest, "strategies": inside}

    def limits(self, limits: Limits, task: Task) -> Limits:
        return self.inside[self.route(task, limits)].limits(limits, task)

    def check(self, context: PlayContext) -> None:
        for strategy in self.inside.values():
            strategy.check(context)

    def check_tasks(self, tasks: Sequence[Task], source: TaskSource) -> None:
        for task in tasks:
            self._check_unknown(task)
        super().check_tasks(tasks, source)

    def players(self) -> tuple[Strategy, ...]:
        return tuple(player for strategy in self.inside.values() for player in strategy.players())

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        routes = [self.route(instance.task, context.limits) for instance in instances]
        played: dict[int, Episodes] = {}
        for label, strategy in self.inside.items():
            chosen = [i for i, route in enumerate(routes) if route == label]
            if chosen:
                played |= zip(chosen, strategy.play([instances[i] for i in chosen], context, player), strict=True)
        return [played[i] for i in range(len(instances))]

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return self._player_of(episodes).choose(episodes, grades)

    def waited(self, episodes: Episodes) -> bool:
        return self._player_of(episodes).waited(episodes)

    def executed(self, episodes: Episodes) -> bool | None:
        return self._player_of(episodes).executed(episodes)

    def route(self, task: Task, limits: Limits) -> str:
        """The name of the strategy that plays a task. Raises `ConfigError` for one that stands in the history."""
        self._check_unknown(task)
        worth = {label: self._worth(label, task, limits) for label in self.inside}
        return max(worth, key=lambda label: worth[label])

    def _check_unknown(self, task: Task) -> None:
        if task.task_id in self._known.tasks:
            raise ConfigError(
                f"history {self.history} has the instance {task.task_id} that is to be played, and knows what came of "
                "it; make the history with another task_seed"
            )

    def predicted(self, label: str, task: Task, limits: Limits) -> tuple[float, float]:
        """Of a strategy the probability that it is right, no number without a history, and the units that it costs."""
        cell, units = cell_of(task, limits), self._known.units[label]
        return self._known.right[label](cell), max(0.0, units(cell)) if units.fitted else 0.0

    def _worth(self, label: str, task: Task, limits: Limits) -> float:
        right, units = self.predicted(label, task, limits)
        return right - self.price * units / 1000 if self.history else 0.0

    def _player_of(self, episodes: Episodes) -> Strategy:
        """An instance's first episode has the whole budget, so its route is found again."""
        return self.inside[self.route(episodes[0].task, episodes[0].limits)]

    @cached_property
    def inside(self) -> Mapping[str, Strategy]:
        """The strategies that are routed to, by name."""
        named = _BOTH if self.strategies is None else self.strategies
        return {label: make_strategy(spec.name, spec.options, f"strategies.{label}") for label, spec in named.items()}

    @cached_property
    def _digest(self) -> str:
        return digest(Path(self.history).read_text(encoding="utf-8")) if self.history else ""

    @cached_property
    def _known(self) -> _Known:
        found: dict[str, list[Result]] = {label: [] for label in self.inside}
        if self.history:
            results = self._read()
            for result in results:
                if result.place.strategy in found:
                    found[result.place.strategy].append(result)
            absent = [label for label, those in found.items() if not those]
            if absent:
                played = sorted({result.place.strategy for result in results})
                raise ConfigError(
                    f"history {self.history} has no result of '{absent[0]}', only of {', '.join(played) or 'nothing'}."
                    + did_you_mean(absent[0], played)
                )
        known = _Known({}, {}, frozenset(result.place.task_id for those in found.values() for result in those))
        for label, those in found.items():
            cells = [(cell_of(result.episodes[0].task, result.episodes[0].limits), result) for result in those]
            known.right[label] = TaskValue(1.0, self.ridge, "logit")
            known.right[label].fit([(cell, float(result.grade.correct)) for cell, result in cells])
            known.units[label] = TaskValue(1.0, self.ridge, "identity")
            known.units[label].fit([(cell, self._units(costs)) for cell, r in cells if (costs := r.costs) is not None])
        return known

    def _read(self) -> list[Result]:
        try:
            return list(read_results(Path(self.history), whole=True))
        except (OSError, SelfcestError) as error:
            raise ConfigError(
                f"history {self.history} cannot be read ({error}); name a study's results.jsonl"
            ) from error

    def _units(self, costs: Costs) -> float:
        if self.cost not in costs:
            raise ConfigError(
                f"cost is '{self.cost}', which history {self.history} has not ({', '.join(costs)})."
                + did_you_mean(self.cost, costs)
            )
        return float(costs[self.cost])


@dataclass(frozen=True)
class _Known:
    """What the history says of each strategy, and the instances that it has."""

    right: dict[str, TaskValue]
    units: dict[str, TaskValue]
    tasks: frozenset[str]
