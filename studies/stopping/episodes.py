"""What the stopping of recorded episodes is worth: the regret of each turn of the root against the optimal rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from selfcest_env.record import EpisodeRecord
from selfcest_env.tasks.witnesses import Witnesses, group_replies, look_up, parse
from selfcest_env.types import Status
from studies.stopping.rules import SequentialTest, count_replies

MIN_GAP = 0.005  # of reward: below it the choice does not matter, and no decision is counted
FAMILY = Witnesses()


@dataclass(frozen=True)
class Stopping:
    """One episode against the optimal rule.

    Attributes:
        price: price of a clone in thousandths.
        clones: number of clones.
        reward: team return.
        regret: sum over the root's turns of the optimal value before the turn minus the value of its action, with the
            optimal rule from then on. Its expected value is the optimal value minus the expected reward: it is the
            regret without the luck of the documents.
        is_plurality: whether the answer is the plurality of the digits in the documents that were asked.
        agreed: for each choice that matters, whether the root chose as the optimal rule.
    """

    price: int
    clones: int
    reward: float
    regret: float
    is_plurality: bool
    agreed: tuple[bool, ...]


def make_test(price: int) -> SequentialTest:
    """Return the decision problem of a price in thousandths."""
    return SequentialTest(price / 1000, FAMILY.witnesses, FAMILY.accuracy, FAMILY.digits)


def judge_episode(record: EpisodeRecord) -> Stopping:
    """Judge an episode of the family `witnesses` with its default options.

    The evidence after a call is the digit in the document that the clone got, whatever the clone replied. So an error
    of a clone or of the root counts as regret.
    """
    query = parse(record.task.prompt)
    if query is None:
        raise ValueError(f"task {record.task.task_id} asks {record.task.prompt!r}; expected a question of witnesses")
    test = make_test(query.price)
    evidence: dict[str, str] = {}
    regret = 0.0
    agreed: list[bool] = []
    for turn in record.root.turns:
        counts = count_replies("".join(evidence.values()), FAMILY.digits)
        if not turn.facts.children:  # an answer, or a refused call, which is free
            continue
        (clone,) = turn.facts.children
        keys = record.by_id[clone].shared_context
        is_new = len(keys) == 1 and keys[0] not in evidence
        # A clone without a new document costs its price, and changes nothing.
        value = test.value_of_going_on(counts) if is_new else test.optimal_value(counts) - test.price
        regret += test.optimal_value(counts) - value
        agreed += _compare(test, counts, goes_on=True)
        if is_new:
            evidence[keys[0]] = look_up(record.task.context[keys[0]], query.field)
    replies = "".join(evidence.values())
    counts = count_replies(replies, FAMILY.digits)
    answer = (record.answer or "") if record.root.status is Status.ANSWERED else ""
    regret += test.optimal_value(counts) - _find_probability(test, replies, answer)
    agreed += _compare(test, counts, goes_on=False)
    is_plurality = bool(replies) and answer == group_replies(replies)[0]
    return Stopping(query.price, record.cost.clones, record.team_return, regret, is_plurality, tuple(agreed))


def _compare(test: SequentialTest, counts: tuple[int, ...], *, goes_on: bool) -> list[bool]:
    """Return whether a choice is the optimal one; empty where there is no choice, or where it does not matter."""
    if not 0 < sum(counts) < test.witnesses:
        return []
    gap = test.value_of_going_on(counts) - test.value_of_stopping(counts)
    return [(gap > 0) is goes_on] if abs(gap) >= MIN_GAP else []


def _find_probability(test: SequentialTest, replies: str, answer: str) -> float:
    """Return the probability that an answer is right; 0 for anything but a digit of the family."""
    digits = [str(digit) for digit in range(test.digits)]
    if answer not in digits:
        return 0.0
    posterior = test.compute_posterior(tuple(replies.count(digit) for digit in digits))
    return posterior[digits.index(answer)]


def describe(records: Iterable[EpisodeRecord]) -> dict[str, Any]:
    """Return the figures of one eval set by price, for a cell's JSON."""
    by_price: dict[int, list[Stopping]] = {}
    for record in records:
        judged = judge_episode(record)
        by_price.setdefault(judged.price, []).append(judged)
    return {str(price): _describe_price(by_price[price]) for price in sorted(by_price)}


def _describe_price(judged: Sequence[Stopping]) -> dict[str, float]:
    agreed = [choice for item in judged for choice in item.agreed]
    return {
        "n": len(judged),
        "regret": round(mean(item.regret for item in judged), 5),
        "reward": round(mean(item.reward for item in judged), 4),
        "clones": round(mean(item.clones for item in judged), 3),
        "plurality": round(mean(item.is_plurality for item in judged), 4),
        "choices": len(agreed),
        "agreed": sum(agreed),
    }
