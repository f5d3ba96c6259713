"""The best expected team return of a symbolic game, by dynamic programming over plans.

A *plan* fixes for each agent whether it answers or calls, and how, whatever symbols it sees. For `chain` and `noisy`
the optimum is that of all policies whose calls do not depend on symbols and whose answers depend only on the symbols
that the agent holds now:

- Items are uniform modulo m. An answer with an error is uniform and independent of everything else, so one error or one
  missing reply makes the sum of all uniform, whatever the other agents answer. So true sums are best. If answers are
  kept with probabilities p_1, p_2, ..., the root is right with probability 1/m + (1 - 1/m) p_1 p_2 ...
- The cost of a plan, and the clones that it is refused, are the same in every episode.

It is no bound for agents that signal. Calls have no errors: a root that sums its long segment itself can encode the sum
in its memory or in its choice of calls, and answer it when it holds a short segment.

For `lookup` a plan depends on symbols: the root asks for the key that it holds until it holds a value or has made the
planned number of calls, and then guesses. This is optimal if it can pay for the longest trail and tokens are free.
Otherwise another way of guessing keys may beat it.

For `deep` the optimum is that of all policies, with any memory and any communication, if tokens are free and every
split has equal parts: either every symbol is visible to an agent that may answer it, or some symbol is visible to no
agent and the sum is uniform.

For `cells` it is that of all policies too, if tokens are free: the root has one action, and the value of a coupling
never falls when one more reply is right. So each clone gives the likeliest answer to its pair, u + v, and is right with
probability p = 1 - hidden + hidden / modulus, independently of all other clones. The expected score follows from p in
closed form. (If tokens cost, a clone whose reply changes nothing, such as the second right one of "max", should not
answer.)

Agents wait only where nothing else is legal. The work grows with the number of different sums of tokens, generated
tokens and clones that plans can reach. For the default rules it takes a fraction of a second.
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
from selfcest_env.symbolic.tasks import COVER, TASKS, Cells, Chain, Deep, Lookup, Noisy


@dataclass(frozen=True)
class Plan:
    """The decisions of one agent. Where a plan is `None`, its agent can neither answer nor call, and waits for its end.

    Attributes:
        call: the kind of call that it makes; `None` if it answers.
        clones: plans of the parts; `None` also for a clone that is refused.
        then: the plan after the join; `None` also where the join is forced.
    """

    call: int | None = None
    clones: tuple[Plan | None, ...] = ()
    then: Plan | None = None

    @property
    def num_calls(self) -> int:
        """Calls of this agent, without those of its clones."""
        return 0 if self.call is None else 1 + (self.then.num_calls if self.then else 0)

    def __str__(self) -> str:
        if self.call is None:
            return "answer"
        clones = ", ".join("-" if clone is None else str(clone) for clone in self.clones)
        return f"call {self.call} ({clones}), {self.then or 'wait'}"


@dataclass(frozen=True)
class Optimum:
    """The results of the best plans, as means over the lengths of problems.

    Attributes:
        team_return: expected team return of an episode.
        success: expected score of the answer.
        tokens: expected tokens of the whole tree.
        plans: by length of the root's segment; `None` where the root can only wait.
    """

    team_return: float
    success: float
    tokens: float
    plans: Mapping[int, Plan | None]


class PlanOutcome(NamedTuple):
    """The outcome of a plan.

    Attributes:
        reliability: probability that no answer below it has an error.
        answers: whether the agent answers at all.
        plan: the plan.
    """

    reliability: float
    answers: bool
    plan: Plan | None


PlanOutcomes = dict[Amounts, PlanOutcome]  # the best plan for each cost


class _PlanScore(NamedTuple):
    success: float
    tokens: float


def optimal_return(rules: SymbolicRules) -> Optimum:
    """Return the best expected team return of a built-in task, under the conditions in the docstring of this module.

    Raises:
        ConfigError: no optimum is known for the task.
    """
    planner = _Planner(rules)
    lengths = _problem_lengths(rules)
    scores = []
    plans = {}
    for length in lengths:
        score, plans[length] = _find_best(planner, length)
        scores.append(score)
    success = sum(score.success for score in scores) / len(scores)
    tokens = sum(score.tokens for score in scores) / len(scores)
    return Optimum(success - rules.token_cost * tokens, success, tokens, plans)


def optimal_plan(rules: SymbolicRules, length: int) -> Plan | None:
    """Return the best plan for a root's segment of this length, `None` if the root can only wait.

    Raises:
        ConfigError: no problem has this length, or no optimum is known for the task.
    """
    lengths = _problem_lengths(rules)
    if length not in lengths:
        raise ConfigError(f"length is {length}; expected {lengths[0]} to {lengths[-1]}, the lengths of problems")
    return _find_best(_Planner(rules), length)[1]


def _problem_lengths(rules: SymbolicRules) -> range:
    # A subclass of a user may draw and grade other problems.
    if type(rules.task) in (Chain, Noisy, Deep, Lookup, Cells):
        match rules.task:
            case Chain(span=(low, high)):
                return range(low, high + 1)
            case Lookup():
                return range(1, 2)
            case Cells(max_length=length):
                return range(length, length + 1)
    raise ConfigError(f"no optimum is known for the task {type(rules.task).__name__}; expected {', '.join(TASKS)}")


def _find_best(planner: _Planner, length: int) -> tuple[_PlanScore, Plan | None]:
    """Return the score of the best plan for a length, and the plan; among equals the cheapest."""
    rules = planner.rules
    outcomes = planner.plan_root(length)
    match rules.task:
        case Lookup():
            score_plan = _score_lookup
        case Cells():
            score_plan = _score_cells
        case _:
            score_plan = _score_chain
    scored = [(score_plan(rules, spent, outcome, outcomes), outcome.plan) for spent, outcome in outcomes.items()]

    def preference(item: tuple[_PlanScore, Plan | None]) -> tuple[float, float]:
        score, _ = item
        # Rounded, so that rounding errors do not decide between plans of equal value.
        return round(score.success - rules.token_cost * score.tokens, 12), -score.tokens

    return max(scored, key=preference)


def _score_chain(rules: SymbolicRules, spent: Amounts, outcome: PlanOutcome, outcomes: PlanOutcomes) -> _PlanScore:
    chance = 1 / rules.task.num_answers
    success = outcome.answers * (chance + (1 - chance) * outcome.reliability)
    return _PlanScore(success, spent.total_tokens or 0)


def _score_lookup(rules: SymbolicRules, spent: Amounts, outcome: PlanOutcome, outcomes: PlanOutcomes) -> _PlanScore:
    """Return means over the lengths of the trail; a root that finds the value early stops early."""
    assert isinstance(rules.task, Lookup)
    assert outcome.plan is not None
    low, high = rules.task.span
    trails = range(low, high + 1)
    num_calls = outcome.plan.num_calls
    tokens_by_calls = {other.plan.num_calls: used.total_tokens or 0 for used, other in outcomes.items() if other.plan}
    reached = sum(hops <= num_calls for hops in trails) / len(trails)
    success = reached + (1 - reached) / rules.task.values
    tokens = sum(tokens_by_calls[min(hops, num_calls)] for hops in trails) / len(trails)
    return _PlanScore(success, tokens)


def _score_cells(rules: SymbolicRules, spent: Amounts, outcome: PlanOutcome, outcomes: PlanOutcomes) -> _PlanScore:
    """Return the expected value of the coupling, where each clone is right with probability p, independently."""
    assert isinstance(rules.task, Cells)
    task = rules.task
    p = 1 - task.hidden + task.hidden / task.modulus
    match task.coupling:
        case "additive" | "zipf":
            success = p
        case "coverage":
            group_sizes = [min(COVER, task.cells - first) for first in range(0, task.cells, COVER)]
            success = sum(1 - (1 - p) ** size for size in group_sizes) / len(group_sizes)
        case _:
            # The upper tail of a binomial distribution.
            counts = range(task.least_right, task.cells + 1)
            success = sum(comb(task.cells, n) * p**n * (1 - p) ** (task.cells - n) for n in counts)
    return _PlanScore(success, spent.total_tokens or 0)


class _Planner:
    """Finds all plans of one set of rules, agent by agent."""

    def __init__(self, rules: SymbolicRules) -> None:
        self.rules = rules
        # Without a limit on generated tokens, plans that differ only in them are merged: their count is always 0.
        self.counts_generated = rules.generated_tokens is not None
        self.plan_agent = cache(self._plan_agent)

    def plan_root(self, length: int) -> PlanOutcomes:
        """Return the plans of a root; their costs contain its opening."""
        rules = self.rules
        opening = Amounts(OPENING + length)
        balance = Amounts(rules.total_tokens, rules.generated_tokens, rules.max_clones)
        outcomes = self.plan_agent(length, balance.minus(opening), 0, 0)
        return {opening.plus(spent): outcome for spent, outcome in outcomes.items()}

    def _plan_agent(self, length: int, balance: Amounts, turns: int, depth: int) -> PlanOutcomes:
        """Return the plans of one agent from its next turn on.

        Args:
            length: symbols that it holds.
            balance: tokens, generated tokens and clones that it has left.
            turns: turns that it has played.
            depth: its depth.
        """
        outcomes: PlanOutcomes = {}
        if self.rules.answerable[length]:
            reliability = self.rules.task.reliability(length)
            outcomes[self._answer_cost()] = PlanOutcome(reliability, True, Plan())
        for kind in range(len(self.rules.task.calls)):
            if self._may_call(kind, length, balance, turns, depth):
                for spent, outcome in self._plan_calls(kind, length, balance, turns, depth):
                    _keep_better(outcomes, spent, outcome)
        return outcomes or self._plan_waiting(length, balance, turns, depth)

    def _answer_cost(self) -> Amounts:
        return Amounts(RESERVE, self.counts_generated * RESERVE)

    def _may_call(self, kind: int, length: int, balance: Amounts, turns: int, depth: int) -> bool:
        rules = self.rules
        parts = rules.task.calls[kind].parts
        least = Amounts(int(rules.least_tokens[rules.column(kind, length)]), 2 * parts + RESERVE, parts)
        return turns + 1 < rules.max_turns and depth < rules.max_depth and balance.covers(least)

    def _plan_waiting(self, length: int, balance: Amounts, turns: int, depth: int) -> PlanOutcomes:
        """Return the plans of an agent that can only wait in this turn."""
        can_continue = balance.covers(Amounts(NOTICE + 2 * RESERVE, 2 * RESERVE))
        if not can_continue or turns + 1 >= self.rules.max_turns:
            return {ZERO: PlanOutcome(0.0, False, None)}
        notice = Amounts(NOTICE)
        later = self.plan_agent(length, balance.minus(notice), turns + 1, depth)
        return {notice.plus(spent): outcome for spent, outcome in later.items()}

    def _plan_calls(
        self, kind: int, length: int, balance: Amounts, turns: int, depth: int
    ) -> Iterator[tuple[Amounts, PlanOutcome]]:
        """Yield every plan that begins with one call, and its cost."""
        parts = self.rules.task.calls[kind].parts
        call_and_replies = Amounts(parts + REPLIES + parts, self.counts_generated * parts)
        # The best reliability and the clones' plans for each cost, part by part.
        joined: dict[Amounts, tuple[float, tuple[Plan | None, ...]]] = {call_and_replies: (1.0, ())}
        grant = self._clone_grant(balance, parts, depth)
        for part_length in self.rules.task.part_lengths(kind, length):
            clone_outcomes = self._plan_clone(part_length, grant, depth + 1)
            before = joined
            joined = {}
            for spent, (reliability, plans) in before.items():
                for clone_spent, outcome in clone_outcomes.items():
                    cost = spent.plus(clone_spent)
                    product = reliability * outcome.reliability
                    if cost not in joined or product > joined[cost][0]:
                        joined[cost] = product, (*plans, outcome.plan)
        for spent, (reliability, plans) in joined.items():
            for later_spent, outcome in self._plan_after_join(parts, balance.minus(spent), turns + 1, depth).items():
                plan = Plan(kind, plans, outcome.plan)
                yield spent.plus(later_spent), PlanOutcome(reliability * outcome.reliability, outcome.answers, plan)

    def _plan_after_join(self, length: int, balance: Amounts, turns: int, depth: int) -> PlanOutcomes:
        """Return the plans of an agent whose call has joined; a forced join answers by itself."""
        if self.rules.forced_join_task is not None:
            return {self._answer_cost(): PlanOutcome(1.0, True, None)}
        return self.plan_agent(length, balance, turns, depth)

    def _clone_grant(self, balance: Amounts, parts: int, depth: int) -> Amounts:
        """Return the grant of each clone of a call: equal shares of what the caller does not keep."""
        kept_back = Amounts(parts + REPLIES + parts + RESERVE, parts + RESERVE, parts)
        tokens, generated, clones = (None if left is None else left // parts for left in balance.minus(kept_back))
        return Amounts(tokens, generated, clones if depth + 1 < self.rules.max_depth else 0)

    def _plan_clone(self, length: int, grant: Amounts, depth: int) -> PlanOutcomes:
        """Return the plans of a clone; their costs contain its opening and its birth. A refused clone costs nothing."""
        opening = Amounts(OPENING + length)
        if not grant.covers(opening.plus(Amounts(RESERVE))):
            return {ZERO: PlanOutcome(0.0, False, None)}
        birth = opening.plus(Amounts(clones=1))
        outcomes = self.plan_agent(length, grant.minus(opening), 0, depth)
        return {birth.plus(spent): outcome for spent, outcome in outcomes.items()}


def _keep_better(outcomes: PlanOutcomes, spent: Amounts, outcome: PlanOutcome) -> None:
    """Store an outcome unless a known one with the same cost is at least as reliable."""
    known = outcomes.get(spent)
    if known is None or (outcome.reliability, outcome.answers) > (known.reliability, known.answers):
        outcomes[spent] = outcome
