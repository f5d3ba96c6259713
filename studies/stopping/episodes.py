"""What the stopping of recorded episodes is worth: the regret of each turn of the root against the optimal rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from selfcest_env.record import EpisodeRecord
from selfcest_env.tasks.offers import FoundOffer, find_best, look_up, parse
from selfcest_env.types import Status
from studies.stopping.rules import START, OfferSearch, SearchState

MIN_GAP = 0.005  # of reward: below it the choice does not matter, and no decision is counted
PRICE_UNIT = 0.002  # reward of a stated price of 1


@dataclass(frozen=True)
class Stopping:
    """One episode against the optimal rule.

    Attributes:
        price: stated price of a clone.
        clones: number of clones.
        reward: team return.
        regret: sum over the root's turns of the optimal value before the turn minus the value of its action, with the
            optimal rule from then on. Its expected value is the optimal value minus the expected reward: it is the
            regret without the luck of the documents.
        is_best: whether the answer is the key of the best offer in the documents that were asked; of equal ones the
            first.
        agreed: for each choice that matters, whether the root chose as the optimal rule.
    """

    price: int
    clones: int
    reward: float
    regret: float
    is_best: bool
    agreed: tuple[bool, ...]


def make_search(price: int) -> OfferSearch:
    """Return the decision problem of a stated price."""
    return OfferSearch(price * PRICE_UNIT)


def judge_episode(record: EpisodeRecord) -> Stopping:
    """Judge an episode of the family `offers` with its default number of documents.

    An offer is that in the document that the clone got, whatever the clone replied. So an error of a clone or of the
    root counts as regret.
    """
    query = parse(record.task.prompt)
    if query is None:
        raise ValueError(f"task {record.task.task_id} asks {record.task.prompt!r}; expected a question of offers")
    search = make_search(query.price)
    offers: list[FoundOffer] = []
    state = START
    regret = 0.0
    agreed: list[bool] = []
    for turn in record.root.turns:
        if not turn.facts.children:  # an answer, or a refused call, which is free
            continue
        (clone,) = turn.facts.children
        keys = record.by_id[clone].shared_context
        is_new = len(keys) == 1 and keys[0] not in [offer.key for offer in offers]
        # A clone without a new document costs its price, and changes nothing.
        value = search.value_of_going_on(state) if is_new else search.optimal_value(state) - search.price
        regret += search.optimal_value(state) - value
        agreed += _compare(search, state, goes_on=True)
        if is_new:
            offers.append(FoundOffer(keys[0], look_up(record.task.context[keys[0]], query.field)))
            state = SearchState(len(offers), int(find_best(offers).digit))
    answer = (record.answer or "").strip() if record.root.status is Status.ANSWERED else ""
    taken = next((offer.digit for offer in offers if offer.key == answer), "0")
    regret += search.optimal_value(state) - int(taken) / 10
    agreed += _compare(search, state, goes_on=False)
    is_best = bool(offers) and answer == find_best(offers).key
    return Stopping(query.price, record.cost.clones, record.team_return, regret, is_best, tuple(agreed))


def _compare(search: OfferSearch, state: SearchState, *, goes_on: bool) -> list[bool]:
    """Return whether a choice is the optimal one; empty where there is no choice, or where it does not matter."""
    if not 0 < state.asked < search.documents:
        return []
    gap = search.value_of_going_on(state) - search.value_of_stopping(state)
    return [(gap > 0) is goes_on] if abs(gap) >= MIN_GAP else []


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
        "best": round(mean(item.is_best for item in judged), 4),
        "choices": len(agreed),
        "agreed": sum(agreed),
    }
