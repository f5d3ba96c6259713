"""The sequential test of `witnesses` as a decision problem: the optimal rule by dynamic programming, and its rivals.

A state is the number of replies for each digit. The digits are exchangeable, so the counts are sorted. With n_d replies
for digit d, Bayes' rule gives P(d) proportional to (accuracy / other)^n_d, where a witness replies with each wrong
digit with probability `other` = (1 - accuracy) / (digits - 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

Counts = tuple[int, ...]
"""Replies for each digit, the largest number first; with zeros for the digits that no witness replied."""

Rule = Callable[[Counts], bool]
"""Whether to ask one more witness. A rule is not asked where no witness is left."""


@dataclass(frozen=True)
class SequentialTest:
    """The decision problem of one price.

    Attributes:
        price: price of a witness, in units of a right answer.
        witnesses, accuracy, digits: as in `witnesses`.
    """

    price: float
    witnesses: int = 7
    accuracy: float = 0.7
    digits: int = 4

    @property
    def start(self) -> Counts:
        return (0,) * self.digits

    def compute_posterior(self, counts: Counts) -> list[float]:
        """Compute the probability of each digit."""
        odds = self.accuracy * (self.digits - 1) / (1 - self.accuracy)
        weights = [odds**count for count in counts]
        return [weight / sum(weights) for weight in weights]

    def value_of_stopping(self, counts: Counts) -> float:
        """Return the probability that the plurality is right."""
        return max(self.compute_posterior(counts))

    def value_of_going_on(self, counts: Counts) -> float:
        """Return the value of one more witness, from which on the optimal rule decides."""
        return self._average_next(counts, self.optimal_value) - self.price

    def optimal_value(self, counts: Counts) -> float:
        return _compute_optimal_value(self, counts)

    def goes_on(self, counts: Counts) -> bool:
        """Return whether the optimal rule asks one more witness. Where both choices are worth the same it stops."""
        return self.value_of_going_on(counts) > self.value_of_stopping(counts)

    def value_of(self, rule: Rule) -> float:
        """Return the expected reward of a rule: the probability of a right answer minus the price of its witnesses."""

        @cache
        def value(counts: Counts) -> float:
            if sum(counts) == self.witnesses or not rule(counts):
                return self.value_of_stopping(counts)
            return self._average_next(counts, value) - self.price

        return value(self.start)

    def regret_of(self, rule: Rule) -> float:
        """Return the value of the optimal rule minus that of another one."""
        return self.optimal_value(self.start) - self.value_of(rule)

    def mean_number_of(self, rule: Rule) -> float:
        """Return the expected number of witnesses that a rule asks."""

        @cache
        def number(counts: Counts) -> float:
            if sum(counts) == self.witnesses or not rule(counts):
                return 0.0
            return 1 + self._average_next(counts, number)

        return number(self.start)

    def _average_next(self, counts: Counts, value: Callable[[Counts], float]) -> float:
        """Return the mean of `value` after one more reply."""
        other = (1 - self.accuracy) / (self.digits - 1)
        total = 0.0
        for digit, probability in enumerate(self.compute_posterior(counts)):
            replied = probability * self.accuracy + (1 - probability) * other
            total += replied * value(add_reply(counts, digit))
        return total


@cache
def _compute_optimal_value(test: SequentialTest, counts: Counts) -> float:
    stopped = test.value_of_stopping(counts)
    return stopped if sum(counts) == test.witnesses else max(stopped, test.value_of_going_on(counts))


def add_reply(counts: Counts, index: int) -> Counts:
    """Return the sorted counts after one more reply for the digit at this index."""
    grown = list(counts)
    grown[index] += 1
    return tuple(sorted(grown, reverse=True))


def count_replies(replies: str, digits: int) -> Counts:
    """Return the sorted counts of a text of digits."""
    counts = [replies.count(str(digit)) for digit in range(digits)]
    return tuple(sorted(counts, reverse=True))


def ask(number: int) -> Rule:
    """Return the rule that asks a fixed number of witnesses."""
    return lambda counts: sum(counts) < number


def ask_until_agreed(number: int) -> Rule:
    """Return the rule that stops when so many replies agree."""
    return lambda counts: max(counts) < number


def find_best_number(tests: Sequence[SequentialTest]) -> int:
    """Return the fixed number of witnesses with the best mean value; of equally good ones the smallest."""

    def total_value(number: int) -> float:
        return sum(test.value_of(ask(number)) for test in tests)

    return max(range(tests[0].witnesses + 1), key=total_value)


def find_best_agreement(test: SequentialTest) -> int:
    """Return the number of equal replies at which it is best to stop; of equally good ones the smallest."""
    return max(range(1, test.witnesses + 1), key=lambda number: test.value_of(ask_until_agreed(number)))
