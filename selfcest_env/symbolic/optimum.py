"""The best that can be expected of a symbolic game, by dynamic programming over plans.

A *plan* says who answers, who calls and how, whatever symbols they see. For `chain` and `noisy` the optimum is that of
all policies whose calls do not depend on symbols, and whose answers depend on what the agent holds now:

- Items are uniform modulo m. An answer that errs becomes uniform and independent of everything else, so one error, or
  one missing reply, leaves the sum of all unknown, however the others answer. So true sums are best, and where they
  are kept with probabilities p_1, p_2, ... the root is right with probability 1/m + (1 - 1/m) p_1 p_2 ...
- What a plan costs, and who is refused, is the same in every episode.

It is no bound for agents that get round the work. Nobody errs in choosing a call: a root that has summed its long
segment itself can tell itself the sum, by memory or by how it calls, and answer it when it holds a short one.

For `lookup` plans are followed with open eyes: the root asks for the key it holds until it holds a value or has asked
as often as planned, and then guesses. That is best where it can afford the longest trail and tokens are free; else some
other way of guessing keys may beat it.

For `deep` the optimum is that of all policies, whatever they remember and tell each other, if tokens are free and every
split cuts into equal parts: either all symbols come before eyes that may answer them, or some symbol is seen by nobody
and the sum is uniform.

For `cells` too, if tokens are free: the root has one action, and couplings never fall when one more reply is right. So
each clone answers what is likeliest given its pair, u + v, and is right with probability p = 1 - hidden + hidden /
modulus, independently of all others. The expected score follows from p in closed form. (At a cost a reply that changes
nothing, as the second right one of "max", is better never given.)

Agents wait only where nothing else is legal. The work grows with the number of different sums of tokens, generated
tokens and clones that plans can come to; for the default rules it takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import comb
from typing import NamedTuple

from selfcest_env.budget import ZERO, Amounts
from selfcest_env.errors import ConfigError
from selfcest_env.symbolic.rules import NOTICE, OPENING, REPLIES, RESERVE, SymbolicRules
from selfcest_env.symbolic.tasks import COVER, TASKS, Cells, Chain, Lookup


@dataclass(frozen=True)
class Plan:
    """What one agent does. Where a plan is `None` its agent cannot answer nor call, so it waits for its end.

    Attributes:
        call: the kind of call it makes; `None` if it answers.
        clones: plans of the parts, `None` also for a clone that is refused.
        then: what it does with the replies; `None` also where they are handed in without a decision.
    """

    call: int | None = None
    clones: tuple[Plan | None, ...] = ()
    then: Plan | None = None

    @property
    def answers(self) -> bool:
        return self.call is None or (self.then is not None and self.then.answers)

    @property
    def num_calls(self) -> int:
        """Calls of this agent alone."""
        return 0 if self.call is None else 1 + (self.then.num_calls if self.then else 0)

    def __str__(self) -> str:
        if self.call is None:
            return "answer"
        clones = ", ".join("-" if clone is None else str(clone) for clone in self.clones)
        return f"call {self.call} ({clones}), {self.then or 'wait'}"


@dataclass(frozen=True)
class Optimum:
    """What the best plans come to, as means over the lengths of problems.

    Attributes:
        team_return, success, tokens: expected, per episode; tokens are those of the whole tree.
        plans: by length of the root's segment; `None` where the root can do nothing but wait.
    """

    team_return: float
    success: float
    tokens: float
    plans: Mapping[int, Plan | None]


class PlanOutcome(NamedTuple):
    """What comes of a plan: the probability that the agent's answer is right but for luck, and whether it gives any."""

    reliability: float
    answers: bool
    plan: Plan | None


PlanOutcomes = dict[Amounts, PlanOutcome]  # the best plan for every sum that plans use up


def optimal_return(rules: SymbolicRules) -> Optimum:
    """The best expected team return of a built-in task (see the module for its conditions).

    Raises:
        ConfigError: nothing is known of the task's optimum.
    """
    planner, lengths = _Planner(rules), _lengths(rules)
    best = [_best(planner, length) for length in lengths]
    success, tokens = (sum(score[i] for score, _ in best) / len(best) for i in range(2))
    plans = {length: plan for length, (_, plan) in zip(lengths, best, strict=True)}
    return Optimum(success - rules.token_cost * tokens, success, tokens, plans)


def optimal_plan(rules: SymbolicRules, length: int) -> Plan | None:
    """The best plan for a root's segment of this length, `None` if the root can do nothing but wait.

    Raises:
        ConfigError: no problem has this length, or nothing is known of the task's optimum.
    """
    lengths = _lengths(rules)
    if length not in lengths:
        raise ConfigError(f"length is {length}; expected {lengths[0]} to {lengths[-1]}, as problems have symbols")
    return _best(_Planner(rules), length)[1]


def _lengths(rules: SymbolicRules) -> range:
    match rules.task:
        case Chain(span=(low, high)):
            return range(low, high + 1)
        case Lookup():
            return range(1, 2)
        case Cells(max_length=length):
            return range(length, length + 1)
    raise ConfigError(f"no optimum is known for the task {type(rules.task).__name__}; expected {', '.join(TASKS)}")


def _best(planner: _Planner, length: int) -> tuple[tuple[float, float], Plan | None]:
    """(success, tokens) of the best plan for a length, and the plan; of equals the cheapest."""
    rules, outcomes = planner.rules, planner.of_root(length)
    match rules.task:
        case Lookup():
            score = _score_lookup
        case Cells():
            score = _score_cells
        case _:
            score = _score_chain
    scored = [(score(rules, spent, outcome, outcomes), outcome.plan) for spent, outcome in outcomes.items()]
    return max(scored, key=lambda item: (round(item[0][0] - rules.token_cost * item[0][1], 12), -item[0][1]))


def _score_chain(
    rules: SymbolicRules, spent: Amounts, outcome: PlanOutcome, outcomes: PlanOutcomes
) -> tuple[float, float]:
    """(success, tokens)."""
    luck = 1 / rules.task.num_answers
    return outcome.answers * (luck + (1 - luck) * outcome.reliability), spent.total_tokens or 0


def _score_lookup(
    rules: SymbolicRules, spent: Amounts, outcome: PlanOutcome, outcomes: PlanOutcomes
) -> tuple[float, float]:
    """As above, as means over the lengths of the trail: whoever finds the value sooner stops."""
    assert isinstance(rules.task, Lookup)
    assert outcome.plan is not None
    low, high = rules.task.span
    trails, calls = range(low, high + 1), outcome.plan.num_calls
    tokens = {other.plan.num_calls: used.total_tokens or 0 for used, other in outcomes.items() if other.plan}
    found = sum(hops <= calls for hops in trails) / len(trails)
    return found + (1 - found) / rules.task.values, sum(tokens[min(hops, calls)] for hops in trails) / len(trails)


def _score_cells(
    rules: SymbolicRules, spent: Amounts, outcome: PlanOutcome, outcomes: PlanOutcomes
) -> tuple[float, float]:
    """As above, where every clone is right with probability p, independently."""
    assert isinstance(rules.task, Cells)
    task, cells = rules.task, rules.task.cells
    p, tokens = 1 - task.hidden + task.hidden / task.modulus, spent.total_tokens or 0
    match task.coupling:
        case "additive" | "zipf":
            return p, tokens
        case "coverage":
            groups = [min(COVER, cells - first) for first in range(0, cells, COVER)]
            return sum(1 - (1 - p) ** size for size in groups) / len(groups), tokens
        case _:
            counts = range(task.least_right, cells + 1)
            return sum(comb(cells, n) * p**n * (1 - p) ** (cells - n) for n in counts), tokens


class _Planner:
    """All plans of one set of rules, agent by agent."""

    def __init__(self, rules: SymbolicRules) -> None:
        self.rules = rules
        # Where generated tokens are unlimited nobody need count them.
        self.counted = rules.generated_tokens is not None
        self.of_agent = cache(self._of_agent)

    def of_root(self, length: int) -> PlanOutcomes:
        """What plans use up holds the opening too."""
        rules, opening = self.rules, Amounts(OPENING + length)
        purse = Amounts(rules.total_tokens, rules.generated_tokens, rules.max_clones)
        outcomes = self.of_agent(length, purse.minus(opening), 0, 0)
        return {opening.plus(spent): outcome for spent, outcome in outcomes.items()}

    def _of_agent(self, length: int, purse: Amounts, turns: int, depth: int) -> PlanOutcomes:
        """Plans from a state of one agent: symbols it holds, its balance, turns it has played, its depth."""
        outcomes: PlanOutcomes = {}
        if self.rules.answerable[length]:
            outcomes[Amounts(RESERVE, self.counted * RESERVE)] = PlanOutcome(
                self.rules.task.reliability(length), True, Plan()
            )
        for kind in range(len(self.rules.task.calls)):
            if self._may_call(kind, length, purse, turns, depth):
                for spent, outcome in self._calls(kind, length, purse, turns, depth):
                    _keep(outcomes, spent, outcome)
        return outcomes or self._waits(length, purse, turns, depth)

    def _may_call(self, kind: int, length: int, purse: Amounts, turns: int, depth: int) -> bool:
        rules, parts = self.rules, self.rules.task.calls[kind].parts
        least = Amounts(int(rules.least_tokens[rules.column(kind, length)]), 2 * parts + RESERVE, parts)
        return turns + 1 < rules.max_turns and depth < rules.max_depth and purse.covers(least)

    def _waits(self, length: int, purse: Amounts, turns: int, depth: int) -> PlanOutcomes:
        poor = not purse.covers(Amounts(NOTICE + 2 * RESERVE, 2 * RESERVE))
        if poor or turns + 1 >= self.rules.max_turns:
            return {ZERO: PlanOutcome(0.0, False, None)}
        notice = Amounts(NOTICE)
        later = self.of_agent(length, purse.minus(notice), turns + 1, depth)
        return {notice.plus(spent): outcome for spent, outcome in later.items()}

    def _calls(
        self, kind: int, length: int, purse: Amounts, turns: int, depth: int
    ) -> Iterator[tuple[Amounts, PlanOutcome]]:
        """Every way to make one call and go on after it."""
        parts = self.rules.task.calls[kind].parts
        message = Amounts(parts + REPLIES + parts, self.counted * parts)
        joined: dict[Amounts, tuple[float, tuple[Plan | None, ...]]] = {message: (1.0, ())}
        grant = self._grant(purse, parts, depth)
        for size in self.rules.task.part_lengths(kind, length):
            clone = self._of_clone(size, grant, depth + 1)
            before, joined = joined, {}
            for spent, (reliability, plans) in before.items():
                for more, outcome in clone.items():
                    both, kept = spent.plus(more), reliability * outcome.reliability
                    if both not in joined or kept > joined[both][0]:
                        joined[both] = kept, (*plans, outcome.plan)
        for spent, (reliability, plans) in joined.items():
            for more, outcome in self._after_join(parts, purse.minus(spent), turns + 1, depth).items():
                plan = Plan(kind, plans, outcome.plan)
                yield spent.plus(more), PlanOutcome(reliability * outcome.reliability, outcome.answers, plan)

    def _after_join(self, length: int, purse: Amounts, turns: int, depth: int) -> PlanOutcomes:
        if self.rules.forced_join_task is not None:
            return {Amounts(RESERVE, self.counted * RESERVE): PlanOutcome(1.0, True, None)}
        return self.of_agent(length, purse, turns, depth)

    def _grant(self, purse: Amounts, parts: int, depth: int) -> Amounts:
        """What each clone of a call gets: equal shares of what the caller does not keep."""
        kept = Amounts(parts + REPLIES + parts + RESERVE, parts + RESERVE, parts)
        tokens, generated, clones = (None if left is None else left // parts for left in purse.minus(kept))
        return Amounts(tokens, generated, clones if depth + 1 < self.rules.max_depth else 0)

    def _of_clone(self, length: int, grant: Amounts, depth: int) -> PlanOutcomes:
        """Plans of a clone; what they use up holds its opening and its birth. Who is refused costs nothing."""
        opening = Amounts(OPENING + length)
        if not grant.covers(opening.plus(Amounts(RESERVE))):
            return {ZERO: PlanOutcome(0.0, False, None)}
        birth = opening.plus(Amounts(clones=1))
        outcomes = self.of_agent(length, grant.minus(opening), 0, depth)
        return {birth.plus(spent): outcome for spent, outcome in outcomes.items()}


def _keep(outcomes: PlanOutcomes, spent: Amounts, outcome: PlanOutcome) -> None:
    known = outcomes.get(spent)
    if known is None or outcome[:2] > known[:2]:
        outcomes[spent] = outcome
