"""The team reward: a grader judges the root's answer, and named terms add up to the team return.

A grader or term that raises, or returns anything but a finite number, stops the run with an error. No failure becomes
a reward of 0.0.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from selfcest_env.errors import ConfigError, InfrastructureError, RewardError, did_you_mean, refuse_name
from selfcest_env.graders import GRADERS, AnswerPart, Grade, Grader
from selfcest_env.plugin import Registry, implements
from selfcest_env.process import ProcessTerm, sum_turns
from selfcest_env.record import ByTurn, EpisodeRecord, Turn, cost_measures
from selfcest_env.structure import Checked, Count, NotEmpty, Number, Positive
from selfcest_env.types import AgentId, Outcome, Role, Task, TurnFacts

T = TypeVar("T")


class RewardTerm(Protocol):
    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        """Return one summand of the team return, from the unscored record and the grade of its answer."""
        ...


@runtime_checkable
class PartedTerm(RewardTerm, Protocol):
    """A term that is a sum over parts of the answer."""

    def parts(self, grade: Grade) -> Mapping[str, float]:
        """Return the summand of each part by its key. They add up to the term's value."""
        ...


@runtime_checkable
class TurnTerm(RewardTerm, Protocol):
    """A term that is a sum over turns. A turn's summand depends only on the turn and on those it descends from."""

    def by_turn(self, record: EpisodeRecord) -> ByTurn:
        """Return a summand for each turn by agent; agents that are left out add 0. They add up to the term's value.

        The result is empty if the term, with these options, is no sum over turns.
        """
        ...


# Terms


@dataclass(frozen=True)
class Correct(Checked):
    """`weight` for a right answer.

    Attributes:
        weight: value of a right answer.
    """

    weight: Number = 1.0

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return self.weight * grade.correct


@dataclass(frozen=True)
class Score(Checked):
    """`weight` times the grader's score: partial credit.

    Attributes:
        weight: factor of the score.
    """

    weight: Number = 1.0

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return self.weight * grade.score

    def parts(self, grade: Grade) -> dict[str, float]:
        return {part.key: self.weight * part.score for part in grade.parts}


@dataclass(frozen=True)
class TokenCost(Checked):
    """Minus `price` per `scale` tokens of the whole tree.

    Attributes:
        price: price of `scale` tokens.
        scale: number of tokens that cost `price`.
        tokens: the field of `record.Cost` that is priced, its suffix `_tokens` optional: "total", "generated", ...
        only_when_correct: whether wrong episodes pay nothing, so that giving up early is not cheaper than trying.
    """

    price: Number = 0.02
    scale: Positive = 200.0
    tokens: str = "total"
    only_when_correct: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._cost_field not in cost_measures():
            known = ", ".join(name.removesuffix("_tokens") for name in cost_measures())
            raise ConfigError(f"tokens is {self.tokens!r}; expected one of {known}")

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        tokens: float = getattr(record.cost, self._cost_field)
        return 0.0 if self.only_when_correct and not grade.correct else -self.price * tokens / self.scale

    def by_turn(self, record: EpisodeRecord) -> ByTurn:
        if self.only_when_correct or self._cost_field not in _TOKENS_OF_TURN:
            return {}
        count_tokens = _TOKENS_OF_TURN[self._cost_field]
        price = -self.price / self.scale
        return _map_turns(record, lambda turn: price * count_tokens(turn.facts))

    @property
    def _cost_field(self) -> str:
        return self.tokens if self.tokens in cost_measures() else f"{self.tokens}_tokens"


@dataclass(frozen=True)
class CloneCost(Checked):
    """Minus `price` for every clone.

    Attributes:
        price: price of a clone.
        price_key: key of a number in the task's metadata that multiplies the price; "" for none.
        default_factor: multiplies the price where a task's metadata lacks the key; with `None` such a task is an error.

    Raises:
        RewardError: a task has no number under `price_key`, and there is no default.
    """

    price: Number = 0.01
    price_key: str = ""
    default_factor: float | None = None

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return -self._price_in(record.task) * record.cost.clones

    def by_turn(self, record: EpisodeRecord) -> ByTurn:
        price = self._price_in(record.task)
        return _map_turns(record, lambda turn: -price * _num_present_children(record, turn))

    def _price_in(self, task: Task) -> float:
        if not self.price_key:
            return self.price
        factor = task.metadata.get(self.price_key, self.default_factor)
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise RewardError(
                f"clone_cost.price_key is {self.price_key!r}, and the metadata of task {task.task_id} of "
                f"{task.source} has {factor!r} there; expected a number, as in tasks of priced_ledgers, or set "
                "default_factor for tasks without one"
            )
        return self.price * factor


@dataclass(frozen=True)
class MalformedCost(Checked):
    """Minus `price` for every malformed turn of any agent.

    Attributes:
        price: price of a malformed turn.
    """

    price: Number = 0.02

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return -self.price * sum(turn.facts.outcome is Outcome.MALFORMED for _, turn in record.turns())

    def by_turn(self, record: EpisodeRecord) -> ByTurn:
        return _map_turns(record, lambda turn: -self.price * (turn.facts.outcome is Outcome.MALFORMED))


def _num_present_children(record: EpisodeRecord, turn: Turn) -> int:
    """Return the number of clones that a turn started, without those that a replay leaves out."""
    return sum(not record.by_id[child].absent for child in turn.facts.children)


def _map_turns(record: EpisodeRecord, value_of: Callable[[Turn], float]) -> ByTurn:
    return {agent.agent_id: tuple(map(value_of, agent.turns)) for agent in record.agents}


_TOKENS_OF_TURN: dict[str, Callable[[TurnFacts], int]] = {
    "total_tokens": lambda facts: facts.prompt_tokens + facts.generated_tokens,
    "prompt_tokens": lambda facts: facts.prompt_tokens,
    "generated_tokens": lambda facts: facts.generated_tokens,
}


@dataclass(frozen=True)
class PaperTokenPenalty(Checked):
    """The released penalty: -weight * (1 - exp(-(t - free) / scale)) for t > free generated tokens.

    t is the root's count, or that of the clone which generated most (0 without a clone).

    Attributes:
        role: agents that pay, `root` or `clone`.
        weight: largest penalty.
        scale: number of tokens beyond `free` at which the penalty is 1 - 1 / e of the weight.
        free: number of tokens without a penalty.
    """

    role: Role
    weight: Number
    scale: float
    free: int = 512

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        tokens = max((agent.generated_tokens for agent in record.agents if agent.role is self.role), default=0)
        return -self.weight * (1 - math.exp(-(tokens - self.free) / self.scale)) if tokens > self.free else 0.0


@dataclass(frozen=True)
class PaperCallPenalty(Checked):
    """The released penalty for calls: -max(0, price * calls - free), calls being `marker`s in the root's text.

    Attributes:
        price: price of a call.
        free: amount that is subtracted from the price of all calls.
        marker: text that is counted as a call.
    """

    price: Number = 0.1
    free: float = 0.2
    marker: Annotated[str, NotEmpty()] = "<tool_call>"

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        calls = sum(turn.generation.text.count(self.marker) for turn in record.root.turns)
        return -max(0.0, self.price * calls - self.free)


@dataclass(frozen=True)
class PaperMathPenalty:
    """Both released token penalties, for mathematics: together at most `cap`, and at most the score.

    With the term `score` it adds up to the released max(0, score - min(penalty, cap)).

    Attributes:
        root: token penalty of the root, with the options of `paper_token_penalty`.
        clone: token penalty of clones, with the options of `paper_token_penalty`.
        cap: largest sum of both.
    """

    root: PaperTokenPenalty = PaperTokenPenalty(Role.ROOT, 0.3, 256.0)
    clone: PaperTokenPenalty = PaperTokenPenalty(Role.CLONE, 0.2, 512.0)
    cap: float = 0.5

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return -min(-self.root(record, grade) - self.clone(record, grade), self.cap, grade.score)


@dataclass(frozen=True)
class Parallel(Checked):
    """`weight` times the parallelism of the episode: min(1, clones of the largest call / `full`), 0 without a clone.

    Source: r_parallel of PARL (Kimi K2.5's report, arXiv 2602.02276, Agent Swarm), which rewards starting sub-agents,
    against "serial collapse", with a weight annealed to 0. The report leaves the formula open. This one lies in [0, 1]
    and does not grow with the number of calls, so more calls earn no more. The calls of all agents are compared, and
    clones that a replay leaves out do not count. The term is no sum over turns.

    Attributes:
        weight: value at full parallelism.
        full: number of clones of a call that is fully parallel.
    """

    weight: Number = 1.0
    full: Count = 2

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        widest = max((_num_present_children(record, turn) for _, turn in record.turns()), default=0)
        return self.weight * min(1.0, widest / self.full)


@dataclass(frozen=True)
class Finish(Checked):
    """`weight` times the share of clones whose answer reached their parent, 0 without a clone.

    Source: r_finish of PARL (see `Parallel`), which gives no reward for clones that do nothing. Clones at every depth
    count, except those that a replay leaves out. Without a clone the share is 0, since 1 would reward an agent most
    for never delegating.

    Attributes:
        weight: value when all clones answered.
    """

    weight: Number = 1.0

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        clones = [agent for agent in record.agents if agent.role is Role.CLONE and not agent.absent]
        return self.weight * sum(not clone.failed for clone in clones) / max(1, len(clones))


TERMS = Registry(
    RewardTerm,
    "reward term",
    "selfcest.reward_term",
    {
        "correct": "selfcest_env.reward:Correct",
        "score": "selfcest_env.reward:Score",
        "token_cost": "selfcest_env.reward:TokenCost",
        "clone_cost": "selfcest_env.reward:CloneCost",
        "offer": "selfcest_env.tasks.offers:Offer",
        "malformed": "selfcest_env.reward:MalformedCost",
        "parallel": "selfcest_env.reward:Parallel",
        "finish": "selfcest_env.reward:Finish",
        "paper_token_penalty": "selfcest_env.reward:PaperTokenPenalty",
        "paper_call_penalty": "selfcest_env.reward:PaperCallPenalty",
        "paper_math_penalty": "selfcest_env.reward:PaperMathPenalty",
    },
)


# The sum of the terms


@dataclass(frozen=True)
class Reward:
    """Named terms and the grader they share."""

    terms: Mapping[str, RewardTerm]
    grader: Grader

    def grade(self, record: EpisodeRecord) -> Grade:
        """Judge the root's answer.

        Raises:
            RewardError: the grader raises, or returns no valid grade.
            InfrastructureError: raised by the grader itself.
        """
        where = f"grader {type(self.grader).__name__}, episode {record.episode_id}"
        try:
            grade = self.grader.grade(record.task, record.answer)
        except InfrastructureError:
            raise
        except Exception as error:
            raise RewardError(f"{where}: raised {type(error).__name__}: {error}") from error
        return _checked_grade(grade, where)

    def check(self, tasks: Iterable[Task], where: str) -> None:
        """Raise `RewardError` if the grader cannot judge the ground truth of a task as an answer."""
        for task in tasks:
            try:
                self.grader.grade(task, task.answer)
            except Exception as error:
                raise RewardError(
                    f"{where}: the reward's grader cannot judge task {task.task_id} of {task.source}: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def prepare(self, records: Sequence[EpisodeRecord]) -> None:
        """Let process terms judge the turns of all these records in one call, before each record is scored.

        Raises:
            RewardError: a process term raises.
        """
        for name, term in self.terms.items():
            if isinstance(term, ProcessTerm):
                try:
                    term.prepare(records)
                except Exception as error:
                    raise RewardError(f"reward term '{name}': raised {type(error).__name__}: {error}") from error

    def score(
        self, record: EpisodeRecord, weights: Mapping[str, float] | None = None, grade: Grade | None = None
    ) -> EpisodeRecord:
        """Return the record with the value of every term.

        Args:
            record: an unscored record.
            weights: weights of the terms in the team return, by name; 1 by default.
            grade: the record's grade if it is known, since some graders are slow; computed by default.

        Raises:
            RewardError: a term raises or is no finite number, or a weight names no term.
            InfrastructureError: a server of a term failed, so the record cannot be used.
        """
        grade = self.grade(record) if grade is None else grade
        values: dict[str, float] = {}
        parts: dict[str, Mapping[str, float]] = {}
        by_turn: dict[str, ByTurn] = {}
        for name, term in self.terms.items():
            where = f"reward term '{name}', episode {record.episode_id}"
            try:
                turns = dict(term.by_turn(record)) if implements(term, TurnTerm) else {}
                value = sum_turns(turns) if isinstance(term, ProcessTerm) else term(record, grade)
                summands = dict(term.parts(grade)) if implements(term, PartedTerm) else {}
            except InfrastructureError:
                raise
            except Exception as error:
                raise RewardError(f"{where}: raised {type(error).__name__}: {error}") from error
            values[name] = _to_finite(value, where)
            if summands:
                _check_sum(summands.values(), values[name], where)
                parts[name] = {key: float(summand) for key, summand in summands.items()}
            nonzero_turns = _checked_turns(turns, values[name], record, where) if turns else {}
            if nonzero_turns:
                by_turn[name] = nonzero_turns
        weights = self.checked_weights(weights or {})
        return replace(
            record, reward_terms=values, parts=parts, by_turn=by_turn, grade_note=grade.note, weights=weights
        )

    def checked_weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the weights as floats. Raises `RewardError` for one that names no term or is not finite."""
        for name in weights:
            if name not in self.terms:
                raise RewardError(
                    f"weights name {name!r}, which is no term of the reward.{did_you_mean(name, self.terms)} "
                    f"Expected names among {', '.join(self.terms)}"
                )
        return {name: _to_finite(weight, f"weight of the reward term '{name}'") for name, weight in weights.items()}


def _checked_grade(grade: object, where: str) -> Grade:
    """Return a grader's verdict with plain numbers. Raises `RewardError` unless it is valid."""
    if not isinstance(grade, Grade):
        raise RewardError(f"{where}: returned {_format_hostile(grade)}; expected a Grade")
    score = _to_finite(grade.score, f"{where}, score")
    if not 0 <= score <= 1:
        raise RewardError(f"{where}: score is {grade.score!r}; expected a number from 0 to 1")
    flags: Mapping[str, object] = {"correct": grade.correct, "well_formed": grade.well_formed}
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise RewardError(f"{where}: {name} is {_format_hostile(flag)}; expected True or False")
    note: object = grade.note
    if not isinstance(note, str):
        raise RewardError(f"{where}: note is {_format_hostile(note)}; expected a text")
    given: object = grade.parts
    if not isinstance(given, tuple) or not all(isinstance(part, AnswerPart) for part in given):
        raise RewardError(f"{where}: parts is {_format_hostile(given)}; expected a tuple of AnswerPart")
    parts = tuple(AnswerPart(part.key, _to_finite(part.score, f"{where}, part")) for part in grade.parts)
    keys: list[object] = [part.key for part in parts]
    if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
        raise RewardError(f"{where}: its parts are {', '.join(map(str, keys))}; expected each key once, as a text")
    if parts:
        _check_sum([part.score for part in parts], score, f"{where}, score")
    return replace(grade, score=score, correct=bool(grade.correct), well_formed=bool(grade.well_formed), parts=parts)


def _check_sum(summands: Iterable[Any], whole: float, where: str, what: str = "part") -> None:
    """Raise `RewardError` unless the summands are finite and add up to the whole."""
    total = math.fsum(_to_finite(summand, f"{where}, {what}") for summand in summands)
    if not math.isclose(total, whole, rel_tol=1e-9, abs_tol=1e-9):
        raise RewardError(
            f"{where}: its {what}s add up to {total:g}; expected its value {whole:g} (a class that overrides the "
            f"value must override its {what}s too)"
        )


def _checked_turns(turns: ByTurn, whole: float, record: EpisodeRecord, where: str) -> ByTurn:
    """Check a term's summands by turn. Return those to store: of the agents with any summand that is not 0."""
    summands: list[float] = []
    given: Mapping[Any, object] = turns
    for agent_id, values in given.items():
        is_row = values.ndim == 1 if isinstance(values, np.ndarray) else isinstance(values, Sequence)
        if not isinstance(agent_id, AgentId) or not isinstance(values, Sequence | np.ndarray) or not is_row:
            raise RewardError(
                f"{where}: its turns have {_format_hostile({agent_id: values})}; expected a tuple of numbers by AgentId"
            )
        agent = record.by_id.get(agent_id)
        if agent is None or len(values) != len(agent.turns):
            taken = "is not in the episode" if agent is None else f"took {len(agent.turns)} turns"
            raise RewardError(f"{where}: it gives {len(values)} numbers for the turns of {agent_id}, which {taken}")
        summands.extend(values)
    _check_sum(summands, whole, where, "turn")
    return {agent_id: tuple(map(float, values)) for agent_id, values in turns.items() if any(values)}


def _to_finite(value: Any, where: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond floating point
        pass
    raise RewardError(f"{where}: returned {_format_hostile(value)}; expected a finite number")


def _format_hostile(value: object) -> str:
    """Return the `repr` of a value for a message, even if the value's class raises there."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else text[:100] + "..."


_PAPER: dict[str, dict[str, Any]] = {
    "score": {"weight": 1.0},
    "root_penalty": {"name": "paper_token_penalty", "role": "root", "weight": 0.3, "scale": 256.0},
    "clone_penalty": {"name": "paper_token_penalty", "role": "clone", "weight": 0.2, "scale": 512.0},
    "call_penalty": {"name": "paper_call_penalty"},
}

# By preset: options of the grader and of each term. Their class is the one that `name`, or else the key, names.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {
        "grader": {"name": "exact_match"},
        "correct": {"weight": 1.0},
        "token_cost": {"price": 0.02, "scale": 200.0, "tokens": "total", "only_when_correct": True},
        "malformed": {"price": 0.02},
    },
    "correct": {
        "grader": {"name": "exact_match"},
        "correct": {"weight": 1.0},
    },
    # For tasks of the size that chat models get. Every token of the tree has a price, clones and prompts included.
    "by_source": {
        "grader": {"name": "by_source", "strict": True},
        "correct": {"weight": 1.0},
        "token_cost": {"price": 0.1, "scale": 4096.0, "tokens": "total", "only_when_correct": True},
        "malformed": {"price": 0.02},
    },
    "paper_arithmetic": {"grader": {"name": "paper_arithmetic"}, **_PAPER},
    "paper_multihop": {"grader": {"name": "paper_multihop"}, **_PAPER},
    # The released rule without symbolic equivalence: equal integers, or equal after normalisation.
    "paper_math": {
        "grader": {"name": "math", "symbolic": False},
        "score": {"weight": 1.0},
        "token_penalty": {"name": "paper_math_penalty"},
    },
}


def make_reward(preset: str = "default", /, **changes: Mapping[str, Any] | None) -> Reward:
    """Return a preset's reward, with changes by term.

    Args:
        preset: a key of `PRESETS`.
        changes: options by term (or `grader`), which replace those of the preset. A new key adds a term, and `None`
            removes one. The option `name` chooses the class, by a built-in name or as `package.module:Class`.

    Example:
        >>> make_reward("default", token_cost={"price": 0.05}, malformed=None, clone_cost={"price": 0.01})
    """
    if preset not in PRESETS:
        raise ConfigError(refuse_name(f"unknown reward {preset!r}", preset, PRESETS, f"one of {', '.join(PRESETS)}"))
    specs: dict[str, Any] = dict(PRESETS[preset])
    for key, change in changes.items():
        if change is None:
            if key not in specs or key == "grader":
                reason = "the grader cannot be left out" if key == "grader" else f"'{preset}' has no term '{key}'"
                raise ConfigError(f"reward.{key} is null, but {reason}.{did_you_mean(key, set(specs) - {'grader'})}")
            del specs[key]
        elif not isinstance(change, Mapping):
            raise ConfigError(f"reward.{key} is {change!r}; expected a mapping of options, or null to leave it out")
        else:
            old_spec = specs.get(key, {})
            # Options belong to their class, so a change of class drops the old options.
            is_same_class = "name" not in change or change["name"] == old_spec.get("name", key)
            specs[key] = {**old_spec, **change} if is_same_class else dict(change)
    grader = _make("grader", specs.pop("grader"), GRADERS)
    return Reward({key: _make(key, spec, TERMS) for key, spec in specs.items()}, grader)


def _make(key: str, spec: Mapping[str, Any], registry: Registry[T]) -> T:
    options = {name: value for name, value in spec.items() if name != "name"}
    return registry.make(str(spec.get("name", key)), options, where=f"reward.{key}")
