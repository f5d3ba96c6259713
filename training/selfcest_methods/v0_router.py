"""`v0_router` has each task played by the strategy with the highest predicted worth.

Source: V_0 (arXiv 2602.03584, from the abstract), its use as a router between models. In the paper a large model is
told of each model's ability by examples. Here two small regressions per strategy are fitted on the results of an
earlier study. Details: docs/methods.md.

    worth(strategy, task) = p(strategy, task) - price * units(strategy, task) / 1000
    p, units: logistic and linear regression on family, size, number of documents and budget

Expected effect: its reward is above that of every single strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

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
from selfcest_methods.state_zero import TaskFeatures, TaskValue, get_task_features

_DEFAULT_STRATEGIES = {"monolithic": PlugIn("monolithic"), "delegate": PlugIn("delegate")}


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
    """A strategy that hands each task to one of several strategies.

    Attributes:
        history: path of the `results.jsonl` of an earlier study; empty for no history.
        strategies: name and options of each strategy by its label in the history; `None` for `monolithic` and
            `delegate`.
        cost: name of the cost that is subtracted from the accuracy.
        price: accuracy that a thousand units of the cost are worth.
        ridge: penalty of the regressions, in instances.
    """

    # 1: episodes with other documents than the task's are judged as the strategy that played them does.
    version: ClassVar[int] = 1
    history: str = ""
    strategies: Annotated[Mapping[str, PlugIn] | None, "null: monolithic and delegate"] = None
    cost: str = "total_tokens"
    price: NotNegative = 0.0
    ridge: Annotated[float, Above(0)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inner:
            raise ConfigError("strategies is empty; name at least one to route to")
        for label, strategy in self.inner.items():
            if strategy.oracle or strategy.uses_expert:
                raise ConfigError(
                    f"strategies.{label} uses an expert or the grades, which no player can know; expected a strategy "
                    "that a policy plays by itself"
                )
        # Reading the history here reports its errors as errors of the config.
        _ = self._history_model

    @property
    def recipe(self) -> Mapping[str, object]:
        # Pairs instead of a mapping, because the order matters: of equally good strategies the first one plays.
        inner_recipes = [[label, strategy.recipe] for label, strategy in self.inner.items()]
        return {**super().recipe, "history": self._digest, "strategies": inner_recipes}

    def limits(self, limits: Limits, task: Task) -> Limits:
        return self.inner[self.route(task, limits)].limits(limits, task)

    def check(self, context: PlayContext) -> None:
        for strategy in self.inner.values():
            strategy.check(context)

    def check_tasks(self, tasks: Sequence[Task], source: TaskSource) -> None:
        for task in tasks:
            self._check_not_in_history(task)
        super().check_tasks(tasks, source)

    def players(self) -> tuple[Strategy, ...]:
        players: list[Strategy] = []
        for strategy in self.inner.values():
            players += strategy.players()
        return tuple(players)

    def play(self, instances: Sequence[Instance], context: PlayContext, player: Player) -> list[Episodes]:
        routes = [self.route(instance.task, context.limits) for instance in instances]
        episodes_by_position: dict[int, Episodes] = {}
        for label, strategy in self.inner.items():
            positions = [i for i, route in enumerate(routes) if route == label]
            if positions:
                episodes = strategy.play([instances[i] for i in positions], context, player)
                episodes_by_position.update(zip(positions, episodes, strict=True))
        return [episodes_by_position[i] for i in range(len(instances))]

    def choose(self, episodes: Episodes, grades: Sequence[Grade]) -> int:
        return self._find_strategy(episodes).choose(episodes, grades)

    def ran_in_series(self, episodes: Episodes) -> bool:
        return self._find_strategy(episodes).ran_in_series(episodes)

    def executed(self, episodes: Episodes) -> bool | None:
        return self._find_strategy(episodes).executed(episodes)

    def route(self, task: Task, limits: Limits) -> str:
        """Return the label of the strategy that plays a task; of equally good ones the first.

        Raises:
            ConfigError: the task is in the history.
        """
        self._check_not_in_history(task)
        worth = {label: self._compute_worth(label, task, limits) for label in self.inner}
        return max(worth, key=lambda label: worth[label])

    def _check_not_in_history(self, task: Task) -> None:
        if task.task_id in self._history_model.task_ids:
            raise ConfigError(
                f"history {self.history} has the instance {task.task_id} that is to be played, with its outcome; make "
                "the history with another task_seed"
            )

    def predict(self, label: str, task: Task, limits: Limits) -> tuple[float, float]:
        """Return the predicted accuracy and cost of a strategy; without a history `nan` and 0."""
        features = get_task_features(task, limits)
        cost = self._history_model.cost[label]
        # A linear regression can predict a negative cost.
        units = max(0.0, cost(features)) if cost.is_fitted else 0.0
        return self._history_model.accuracy[label](features), units

    def _compute_worth(self, label: str, task: Task, limits: Limits) -> float:
        if not self.history:
            return 0.0
        accuracy, units = self.predict(label, task, limits)
        return accuracy - self.price * units / 1000

    def _find_strategy(self, episodes: Episodes) -> Strategy:
        """Return the strategy that played these episodes of a task."""
        # The first episode had the limits of the whole strategy, and metadata with the task's number of documents.
        return self.inner[self.route(episodes[0].task, episodes[0].limits)]

    @cached_property
    def inner(self) -> Mapping[str, Strategy]:
        """The strategies to choose from, by label."""
        specs = _DEFAULT_STRATEGIES if self.strategies is None else self.strategies
        return {label: make_strategy(spec.name, spec.options, f"strategies.{label}") for label, spec in specs.items()}

    @cached_property
    def _digest(self) -> str:
        return digest(Path(self.history).read_text(encoding="utf-8")) if self.history else ""

    @cached_property
    def _history_model(self) -> _HistoryModel:
        model = _HistoryModel({}, {}, set())
        for label, results in self._read_history().items():
            outcomes: list[tuple[TaskFeatures, float]] = []
            units: list[tuple[TaskFeatures, float]] = []
            for result in results:
                features = get_task_features(result.episodes[0].task, result.episodes[0].limits)
                outcomes.append((features, float(result.grade.correct)))
                # A task whose prompt fits no budget has no costs.
                if result.costs is not None:
                    units.append((features, self._get_units(result.costs)))
                model.task_ids.add(result.place.task_id)
            model.accuracy[label] = TaskValue(1.0, self.ridge, "logit")
            model.accuracy[label].fit(outcomes)
            model.cost[label] = TaskValue(1.0, self.ridge, "identity")
            model.cost[label].fit(units)
        return model

    def _read_history(self) -> dict[str, list[Result]]:
        """Return the results of each strategy; empty lists without a history.

        Raises:
            ConfigError: the history cannot be read, or lacks a strategy.
        """
        results_by_label: dict[str, list[Result]] = {label: [] for label in self.inner}
        if not self.history:
            return results_by_label
        try:
            results = list(read_results(Path(self.history), whole=True))
        except (OSError, SelfcestError) as error:
            raise ConfigError(
                f"history {self.history} cannot be read ({error}); name a study's results.jsonl"
            ) from error
        for result in results:
            if result.place.strategy in results_by_label:
                results_by_label[result.place.strategy].append(result)
        labels = sorted({result.place.strategy for result in results})
        for label, label_results in results_by_label.items():
            if not label_results:
                raise ConfigError(
                    f"history {self.history} has no result of '{label}'.{did_you_mean(label, labels)} It has results "
                    f"of {', '.join(labels) or 'no strategy'}"
                )
        return results_by_label

    def _get_units(self, costs: Costs) -> float:
        if self.cost not in costs:
            raise ConfigError(
                f"history {self.history} has no cost '{self.cost}'.{did_you_mean(self.cost, costs)} Expected one of "
                f"{', '.join(costs)}"
            )
        return float(costs[self.cost])


@dataclass(frozen=True)
class _HistoryModel:
    """Regressions of accuracy and cost by label, and the ids of all tasks of the history."""

    accuracy: dict[str, TaskValue]
    cost: dict[str, TaskValue]
    task_ids: set[str]
