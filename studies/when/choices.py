"""What a policy's choices are worth on priced ledgers, against rules that know what its prompts state.

Each test instance was played three times from the same weights: by the policy's own choice, and with either choice
forced. The value of delegating on an instance is the difference of the forced rewards. A rule says for each prompt
whether to delegate, and earns the reward of that forced choice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import eq
from pathlib import Path
from statistics import mean
from typing import Any

from selfcest_env.record import EpisodeRecord, read_episodes
from selfcest_env.types import Task
from selfcest_eval.play.results import Result

SIZE_RANGES = {"3 to 9": range(3, 10), "10 to 13": range(10, 14), "14 to 17": range(14, 18), "18 to 27": range(18, 28)}
NO_ROOM = "too long for the window"
LARGEST_NUMBER = 99  # that a prompt can state
MIN_GAIN = 0.02  # of reward: below it the choice does not matter, and no decision is counted


@dataclass(frozen=True)
class Prompt:
    """What a prompt states: the size (`None`: not stated), the room of the window, and the price of a clone."""

    size: int | None
    room: int
    price: int

    @classmethod
    def of(cls, task: Task) -> Prompt:
        stated = int(task.metadata["stated_size"])
        return cls(None if stated < 0 else stated, int(task.metadata["room"]), int(task.metadata["price"]))

    @property
    def comparison(self) -> str:
        """What the expert writes of size and room: `+` the size fits, `-` it does not, `?` no size is stated."""
        return "?" if self.size is None else "+" if self.size <= self.room else "-"


@dataclass(frozen=True)
class Observed:
    """The value of delegating after a prompt, as training episodes or test instances show it."""

    prompt: Prompt
    gain: float


@dataclass(frozen=True)
class Instance:
    """A test instance: its prompt, its true size, and the rewards of the policy and of both forced choices."""

    prompt: Prompt
    true_size: int
    free: float
    always: float
    never: float
    delegated: bool
    is_right: bool

    @property
    def gain(self) -> float:
        return self.always - self.never

    @property
    def fits(self) -> bool:
        return self.true_size <= self.prompt.room


Rule = Callable[[Prompt], bool]


def read_training_values(file: Path) -> list[Observed]:
    """Return the value of delegating in each training group in which some episodes delegated and some did not."""
    observed = []
    for _, records in groupby(read_episodes(file), key=lambda record: record.task.task_id):
        group = list(records)
        delegating = [record.team_return for record in group if _delegates(record)]
        reading = [record.team_return for record in group if not _delegates(record)]
        if delegating and reading:
            observed.append(Observed(Prompt.of(group[0].task), mean(delegating) - mean(reading)))
    return observed


def _delegates(record: EpisodeRecord) -> bool:
    return record.cost.clones > 0


def read_instances(results: Iterable[Result], free: str, always: str, never: str) -> dict[str, list[Instance]]:
    """Return the test instances by eval set, from the results of three strategies with the same weights."""
    rewards: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        if result.place.style is None and result.place.strategy in (free, always, never):
            key = result.place.size, result.place.task_id
            rewards.setdefault(key, {})[result.place.strategy] = result
    instances: dict[str, list[Instance]] = {}
    for (eval_set, _), by_strategy in rewards.items():
        own, forced, alone = (by_strategy[name].episodes[by_strategy[name].chosen] for name in (free, always, never))
        instance = Instance(
            Prompt.of(own.task),
            int(own.task.metadata["size"]),
            own.team_return,
            forced.team_return,
            alone.team_return,
            _delegates(own),
            by_strategy[free].grade.correct,
        )
        instances.setdefault(eval_set, []).append(instance)
    return instances


def fit_threshold_rule(observed: Sequence[Observed], ignores: str = "") -> Rule:
    """Fit the rule that delegates from a number on, with one number for each price and comparison.

    Where the stated size fits the window, the number is that size: the longer the ledgers, the more a short critical
    path is worth. Where it does not fit, the number is the excess over the room. Where no size is stated, the rule
    delegates from a small room downwards. Each number is the one that would have gained most on what was observed.

    Args:
        ignores: what the rule does not look at: "size" (but for the comparison with the window: so it is a table of
            comparison and price), "window", "price", or "" for nothing.
    """

    def find_case(prompt: Prompt) -> tuple[Hashable, int]:
        seen = _hide(prompt, ignores)
        return (seen.price, seen.comparison), 0 if ignores == "size" else _measure(seen)

    points: dict[Hashable, list[tuple[int, float]]] = {}
    for item in observed:
        case, number = find_case(item.prompt)
        points.setdefault(case, []).append((number, item.gain))
    thresholds = {case: _find_best_threshold(found) for case, found in points.items()}

    def rule(prompt: Prompt) -> bool:
        case, number = find_case(prompt)
        return number >= thresholds.get(case, float("inf"))

    return rule


def _hide(prompt: Prompt, ignores: str) -> Prompt:
    """Return the prompt with the same price, or a window with room for everything, as all others."""
    if ignores == "price":
        return replace(prompt, price=0)
    return replace(prompt, room=LARGEST_NUMBER) if ignores == "window" else prompt


def _measure(prompt: Prompt) -> int:
    """Return the number on which the threshold rule looks after a prompt."""
    if prompt.size is None:
        return -prompt.room
    return prompt.size if prompt.size <= prompt.room else prompt.size - prompt.room


def _find_best_threshold(points: Sequence[tuple[int, float]]) -> float:
    """Return the threshold from which on the gains of all points add up to most; infinite to take none."""
    best_threshold = float("inf")
    best_gain = 0.0
    for threshold in sorted({value for value, _ in points}):
        gain = sum(gain for value, gain in points if value >= threshold)
        if gain > best_gain:
            best_threshold = threshold
            best_gain = gain
    return best_threshold


def fit_table(observed: Sequence[Observed]) -> Rule:
    """Fit a look-up table of whole prompts. One that was not observed gets the choice that was better on average."""
    gains: dict[Prompt, list[float]] = {}
    for item in observed:
        gains.setdefault(item.prompt, []).append(item.gain)
    default = sum(item.gain for item in observed) > 0
    choices = {prompt: mean(values) > 0 for prompt, values in gains.items()}
    return lambda prompt: choices.get(prompt, default)


def evaluate_rule(rule: Rule, instances: Sequence[Instance]) -> float:
    """Return the mean reward of a rule."""
    return mean(item.always if rule(item.prompt) else item.never for item in instances)


def describe(instances: Sequence[Instance], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the figures of one eval set, for a cell's JSON.

    `agreement` is the share of instances on which the better choice was taken, among those on which the two differ by
    `MIN_GAIN`; 1 if they never do. `hindsight` is the threshold rule that is fitted on these instances, and `oracle`
    takes the better choice of each.
    """
    counted = [item for item in instances if abs(item.gain) >= MIN_GAIN]
    hindsight = fit_threshold_rule([Observed(item.prompt, item.gain) for item in instances])
    choices = {"policy": [item.delegated for item in counted]}
    for name, rule in rules.items():
        choices[name] = [rule(item.prompt) for item in counted]
    better = [item.gain > 0 for item in counted]
    return {
        "n": len(instances),
        "accuracy": round(mean(item.is_right for item in instances), 4),
        "delegated": round(mean(item.delegated for item in instances), 4),
        "agreement": {name: round(mean(map(eq, made, better)), 4) if made else 1.0 for name, made in choices.items()},
        "counted": len(counted),
        "rewards": {
            "policy": round(mean(item.free for item in instances), 4),
            "always": round(mean(item.always for item in instances), 4),
            "never": round(mean(item.never for item in instances), 4),
            **{name: round(evaluate_rule(rule, instances), 4) for name, rule in rules.items()},
            "hindsight": round(evaluate_rule(hindsight, instances), 4),
            "oracle": round(mean(max(item.always, item.never) for item in instances), 4),
        },
        "choices": _count_choices(instances),
    }


def _count_choices(instances: Sequence[Instance]) -> dict[str, dict[str, list[int]]]:
    """Return by range of the true size and by price how many instances delegated, were better delegated, and all."""
    counts: dict[str, dict[str, list[int]]] = {}
    for item in instances:
        by_price = counts.setdefault(_find_range(item), {})
        count = by_price.setdefault(str(item.prompt.price), [0, 0, 0])
        for i, is_counted in enumerate((item.delegated, item.gain > 0, True)):
            count[i] += is_counted
    return counts


def _find_range(instance: Instance) -> str:
    """Return the range of sizes of an instance, or `NO_ROOM`."""
    if not instance.fits:
        return NO_ROOM
    (found,) = (words for words, sizes in SIZE_RANGES.items() if instance.true_size in sizes)
    return found
