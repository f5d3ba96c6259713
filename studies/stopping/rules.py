"""The search of `offers` as a decision problem: the optimal rule by dynamic programming, and its rivals.

Before the first reply no offer can be taken, which is worth as much as an offer of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import NamedTuple

from selfcest_env.tasks.offers import Offers

DIGITS = range(10)


class SearchState(NamedTuple):
    """The number of documents that clones were given, and the best offer there, a digit."""

    asked: int
    best: int


START = SearchState(0, 0)

Rule = Callable[[SearchState], bool]
"""Whether to call one more clone. A rule is not asked where no document is left."""


@dataclass(frozen=True)
class OfferSearch:
    """The decision problem of one price.

    Attributes:
        price: price of a clone; an offer is worth a tenth of its digit.
        documents: as in `offers`.
    """

    price: float
    documents: int = Offers.documents

    def gain_of_one_more(self, best: int) -> float:
        """Return the value of one more clone after which the root stops: E[max(0, offer - best)] minus the price."""
        return fmean(max(0, digit - best) for digit in DIGITS) / 10 - self.price

    @property
    def threshold(self) -> int:
        """The smallest digit after which one more clone gains nothing, if the root stops after it."""
        return next(digit for digit in DIGITS if self.gain_of_one_more(digit) <= 0)

    def value_of_stopping(self, state: SearchState) -> float:
        return state.best / 10

    def value_of_going_on(self, state: SearchState) -> float:
        """Return the value of one more clone, from which on the optimal rule decides."""
        return self._average_next(state, self.optimal_value) - self.price

    def optimal_value(self, state: SearchState) -> float:
        return _compute_optimal_value(self, state)

    def goes_on(self, state: SearchState) -> bool:
        """Return whether the optimal rule calls one more clone. Where both choices are worth the same it stops."""
        return self.value_of_going_on(state) > self.value_of_stopping(state)

    def make_value(self, rule: Rule) -> Callable[[SearchState], float]:
        """Return the expected reward of a rule from each state on: the value of its offer minus the price of clones."""

        @cache
        def value(state: SearchState) -> float:
            if state.asked == self.documents or not rule(state):
                return self.value_of_stopping(state)
            return self._average_next(state, value) - self.price

        return value

    def value_of(self, rule: Rule) -> float:
        """Return the expected reward of a rule."""
        return self.make_value(rule)(START)

    def regret_of(self, rule: Rule) -> float:
        """Return the value of the optimal rule minus that of another one."""
        return self.optimal_value(START) - self.value_of(rule)

    def mean_number_of(self, rule: Rule) -> float:
        """Return the expected number of clones that a rule calls."""

        @cache
        def number(state: SearchState) -> float:
            if state.asked == self.documents or not rule(state):
                return 0.0
            return 1 + self._average_next(state, number)

        return number(START)

    def _average_next(self, state: SearchState, value: Callable[[SearchState], float]) -> float:
        """Return the mean of `value` after one more offer."""
        return fmean(value(SearchState(state.asked + 1, max(state.best, digit))) for digit in DIGITS)


@cache
def _compute_optimal_value(search: OfferSearch, state: SearchState) -> float:
    stopped = search.value_of_stopping(state)
    return stopped if state.asked == search.documents else max(stopped, search.value_of_going_on(state))


def ask(number: int) -> Rule:
    """Return the rule that calls a fixed number of clones."""
    return lambda state: state.asked < number


def ask_until(digit: int) -> Rule:
    """Return the rule that stops as soon as an offer is at least this digit."""
    return lambda state: state.asked == 0 or state.best < digit


def find_best_number(searches: Sequence[OfferSearch]) -> int:
    """Return the fixed number of clones with the best mean value; of equally good ones the smallest."""
    return _find_best(searches, ask, range(searches[0].documents + 1))


def find_best_threshold(searches: Sequence[OfferSearch]) -> int:
    """Return the digit at which it is best to stop whatever the price; of equally good ones the smallest."""
    return _find_best(searches, ask_until, DIGITS)


def _find_best(searches: Sequence[OfferSearch], make_rule: Callable[[int], Rule], numbers: range) -> int:
    return max(numbers, key=lambda number: fmean(search.value_of(make_rule(number)) for search in searches))
