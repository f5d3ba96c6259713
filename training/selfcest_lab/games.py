"""Small delegation games, each of which shows a way in which credit can be wrong.

The real kernel and rollout play them. In each context an agent chooses among a few generations. Payoffs are multiples
of 1/32, so returns are exact in every precision. In a noisy game the root's last turn, after the join, is random too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase

from selfcest_agents.codec import TerseCodec
from selfcest_agents.tiny import TinyTokenizer
from selfcest_env.graders import ExactMatch, Grade
from selfcest_env.graders.cells import CellMatch
from selfcest_env.process import ProcessStep, ProcessTerm
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import MalformedCost, Reward, RewardTerm, Score, TokenCost
from selfcest_env.rules import Rules
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Limits, Task
from selfcest_env.views import Observation
from selfcest_lab.tabular import LogitTable, Menu, seeded_logit


@dataclass(frozen=True)
class Payoff:
    """A reward term by the root's final answer.

    Attributes:
        by_answer: reward of each answer.
        otherwise: reward of any other answer, and of an episode without one.
    """

    by_answer: Mapping[str, float]
    otherwise: float = 0.0

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return self.by_answer.get(record.answer or "", self.otherwise)


@dataclass(frozen=True)
class CloneTurnReward(ProcessTerm):
    """A reward term by the text of each turn of a clone, 0 for texts that are not listed and for the root."""

    by_text: Mapping[str, float]

    def judge(self, steps: Sequence[ProcessStep]) -> list[float]:
        return [self.by_text.get(step.text, 0.0) if step.depth else 0.0 for step in steps]


@dataclass(frozen=True)
class Game:
    """A small delegation game: what agents may write, what answers are worth, and the limits.

    Attributes:
        name: name in tables; it keys the policy's logits too.
        about: one line for tables.
        menu: the generations that an agent may write in a context.
        payoff: reward by final answer.
        limits: limits of the kernel.
        token_price: price of each token of the tree.
        malformed_price: price of each malformed turn.
        group_size: episodes per group, for games about groups of a certain size; `None` for that of the run.
        judged: reward by text of each turn of a clone; empty for none.
        cells: the right answers for an additional grade by document, a character for each of `A`, `B`, ...; empty for
            none.
        draw: number of the draw of the policy's logits: the first one under which the root of the games here delegates
            with a probability of 0.7 to 0.95.
    """

    name: str
    about: str
    menu: Menu
    payoff: Payoff
    limits: Limits = field(default_factory=lambda: Limits(max_turns=4))
    token_price: float = 0.0
    malformed_price: float = 0.0
    group_size: int | None = None
    judged: Mapping[str, float] = field(default_factory=dict)
    cells: str = ""
    draw: int = 0

    def rules(self) -> Rules:
        """Return the kernel's rules, with the terse protocol and a character tokenizer."""
        return Rules(self.limits, TerseProtocol(), TerseCodec(TinyTokenizer()))

    def table(self) -> LogitTable:
        """Return a new table of the game's policy."""
        return LogitTable(TerseCodec(TinyTokenizer()), self.menu, seeded_logit(self.name, self.draw))

    def task(self) -> Task:
        """Return the game's only task."""
        keys = ascii_uppercase[: len(self.cells)]
        return Task(self.name, "?", self.cells, "lab", dict.fromkeys(keys, "1"), metadata={"cells": keys})

    def reward(self) -> Reward:
        """Return the reward: payoff, prices, and the grades that the game has."""
        terms: dict[str, RewardTerm] = {
            "payoff": self.payoff,
            "token_cost": TokenCost(self.token_price, scale=1.0),
            "malformed": MalformedCost(self.malformed_price),
        }
        if self.judged:
            terms["judged"] = CloneTurnReward(self.judged)
        if self.cells:
            terms["score"] = Score()
            return Reward(terms, CellMatch())
        return Reward(terms, ExactMatch())


def _answers(*texts: str) -> list[str]:
    return [f"<ans>{text}<end>" for text in texts]


def _call(*objectives: str) -> str:
    return f"<call>{'<sep>'.join(objectives)}</call>"


def _replies(observation: Observation) -> list[str]:
    """Return the replies to an agent so far, in order of call and clone, with "0" for a reply that is no number."""
    replies = [reply.text or "" for exchange in observation.exchanges for reply in exchange.replies]
    return [text if text.isdecimal() else "0" for text in replies]


# The menus. "x" and "y" are objectives of a call; the root's answer joins the replies as digits, so a payoff names what
# every clone answered.


def _pair(noisy: bool) -> Menu:
    def menu(observation: Observation) -> Sequence[str]:
        match observation.brief.text:
            case "x":
                return _answers("1", "2", "12")
            case "y":
                return _answers("1", "2")
        if not observation.exchanges:
            return [_call("x", "y"), *_answers("0")]
        x, y = _replies(observation)
        return _answers(f"{x}{y}", *([f"{y}{y}", "0"] if noisy else []))

    return menu


def _series(observation: Observation) -> Sequence[str]:
    if observation.agent_id != ROOT:
        return _answers("1", "2")
    match _replies(observation):
        case []:
            return [_call("x", "y"), *_answers("0")]
        case [x, y]:
            return [_call(f"z{x}"), *_answers(f"{x}{y}")]
        case replies:
            return _answers("".join(replies))


def _nested(observation: Observation) -> Sequence[str]:
    replies = "".join(_replies(observation))
    match observation.brief.text:
        case "x":
            return _answers(replies, "3") if replies else [_call("u", "v"), *_answers("3")]
        case "u" | "v":
            return _answers("1", "2")
    return _answers(replies) if replies else [_call("x"), *_answers("0")]


def _gated(observation: Observation) -> Sequence[str]:
    if observation.agent_id == ROOT:
        replies = "".join(_replies(observation))
        return _answers(replies) if replies else [_call("x", "y"), *_answers("0")]
    return [*_answers("1"), "<end>"] if observation.exchanges else [*_answers("1", "2"), "<end>"]


def _dummy(observation: Observation) -> Sequence[str]:
    if observation.agent_id != ROOT:
        return _answers("1", "2", "3")
    replies = _replies(observation)
    return _answers(replies[0]) if replies else [_call("x", "y"), *_answers("0")]


def _cells(noisy: bool) -> Menu:
    def menu(observation: Observation) -> Sequence[str]:
        if observation.agent_id != ROOT:
            return _answers("1", "2")
        if not observation.exchanges:
            return [_call("x@A", "x@B"), *_answers("0")]
        first, second = _replies(observation)
        return _answers(f"{first}{second}", *([f"3{second}", f"{first}3"] if noisy else []))

    return menu


def _single(observation: Observation) -> Sequence[str]:
    if observation.agent_id != ROOT:
        return _answers("1", "2")
    replies = "".join(_replies(observation))
    return _answers(replies) if replies else [_call("x"), *_answers("0")]


def _trio(observation: Observation) -> Sequence[str]:
    if observation.agent_id != ROOT:
        return _answers("1", "2")
    replies = "".join(_replies(observation))
    return _answers(replies) if replies else [_call("x", "y", "z"), *_answers("0")]


def _deep(observation: Observation) -> Sequence[str]:
    replies = "".join(_replies(observation))
    is_root = observation.agent_id == ROOT
    objective_of_child = {"": "x", "x": "y", "y": "z"}.get("" if is_root else observation.brief.text)
    if objective_of_child is None:
        return _answers("1", "2")
    if not replies:
        # An agent that does not delegate answers a digit of its own depth, so that the payoff can tell who stopped.
        answer_alone = "0" if is_root else str(2 + observation.agent_id.depth)
        return [_call(objective_of_child), *_answers(answer_alone)]
    return _answers(replies) if is_root else _answers(replies, "5")


def _two_deep(observation: Observation) -> Sequence[str]:
    if observation.brief.text == "u":
        return _answers("1", "2")
    if replies := "".join(_replies(observation)):
        return _answers(replies)
    return [_call("u"), *_answers("3")] if observation.agent_id.depth else [_call("x"), *_answers("0")]


def _words(observation: Observation) -> Sequence[str]:
    if observation.agent_id != ROOT:
        return _answers("1", "2")
    replies = "".join(_replies(observation))
    if replies:
        return _answers(replies, "3")
    return [f"a{_call('x')}", f"b{_call('x')}", *_answers("0")]


def _uneven(observation: Observation) -> Sequence[str]:
    replies = "".join(_replies(observation))
    if observation.agent_id == ROOT:
        return _answers(replies) if replies else [_call("x"), _call("y", "y"), *_answers("0")]
    match observation.brief.text:
        case "x" if not observation.exchanges:
            return [_call("u"), *_answers("1"), "<end>"]
        case "x":
            return _answers(replies) if replies else [*_answers("2"), "<end>"]
    return _answers("1", "2")


def _coupled(observation: Observation) -> Sequence[str]:
    # The long generations use up the budget: what the clones leave decides whether the root can call again.
    if observation.agent_id != ROOT:
        return [*_answers("1"), "9999<ans>2<end>"]
    match _replies(observation):
        case []:
            return [_call("x", "y"), *_answers("0")]
        case [x, y]:
            return [_call("z"), f"88888888<ans>{x}{y}<end>", *_answers(f"{x}{y}")]
        case replies:
            return _answers("".join(replies))


# Each payoff makes the clones' replies interact: the value of one digit depends on the others.
_TRIO = Payoff({"0": 0.25, "111": 1.0, "112": 0.5, "121": 0.625, "211": 0.125, "122": 0.25, "221": 0.875, "222": 0.75})
_PAIR = Payoff({"0": 0.25, "11": 1.0, "12": 0.125, "21": 0.25, "22": 0.5, "121": 0.75, "122": 0.875})
_PRICE = 1 / 64

_ALL = (
    Game("pair", "one call, two clones, the root joins their replies", _pair(False), _PAIR, token_price=_PRICE, draw=2),
    Game("pair_noisy", "as pair, with a root that may misread", _pair(True), _PAIR, token_price=_PRICE, draw=1),
    Game(
        "series",
        "two calls in series; the objective of the second depends on the first reply",
        _series,
        Payoff({"0": 0.25, "11": 0.5, "21": 0.75, "111": 1.0, "122": 0.875, "212": 1.0, "221": 0.5}),
        token_price=_PRICE / 2,
        draw=2,
    ),
    Game(
        "nested",
        "a clone that may delegate in its turn",
        _nested,
        Payoff({"0": 0.25, "3": 0.5, "11": 1.0, "12": 0.125, "21": 0.25, "22": 0.75}),
        replace(Limits(max_turns=4), max_depth=2),
        token_price=_PRICE / 2,
    ),
    Game(
        "gated",
        "clones that may make an error, recover or fail",
        _gated,
        Payoff({"0": 0.25, "11": 1.0, "12": 0.25, "21": 0.5, "22": 0.75, "01": 0.875, "10": 0.5, "20": 0.75}),
        Limits(max_turns=2),
        token_price=_PRICE / 2,
        malformed_price=1 / 16,
        draw=3,
    ),
    Game(
        "dummy",
        "two clones; the reply of the second is ignored",
        _dummy,
        Payoff({"0": 0.25, "1": 1.0, "2": 0.0, "3": 0.5}),
        draw=2,
    ),
    Game(
        "quartet",
        "one clone, in groups of four episodes",
        _single,
        Payoff({"0": 0.25, "1": 1.0, "2": 0.5}),
        token_price=_PRICE,
        group_size=4,
    ),
    Game(
        "trio",
        "one call of three clones whose replies are rewarded together",
        _trio,
        _TRIO,
        token_price=_PRICE,
    ),
    Game(
        "deep",
        "a clone of a clone of a clone",
        _deep,
        Payoff({"0": 0.25, "1": 1.0, "2": 0.125, "3": 0.5, "4": 0.375, "5": 0.75}),
        replace(Limits(max_turns=4), max_depth=3),
        token_price=_PRICE / 2,
        draw=3,
    ),
    Game(
        "cells",
        "two clones that answer for a document each; the return is a sum over documents",
        _cells(False),
        Payoff({"0": 0.25}),
        token_price=_PRICE / 4,
        cells="12",
        draw=3,
    ),
    Game(
        "cells_misread",
        "as cells, with a root that may misread one reply, with a probability that depends on the other",
        _cells(True),
        Payoff({"0": 0.25}),
        token_price=_PRICE / 4,
        cells="12",
        draw=1,
    ),
    Game(
        "two_deep",
        "a clone that may call a clone, with few enough outcomes for two rounds of replays",
        _two_deep,
        Payoff({"0": 0.25, "3": 0.5, "1": 1.0, "2": 0.125}),
        replace(Limits(max_turns=4), max_depth=2),
        token_price=_PRICE / 2,
        draw=1,
    ),
    Game(
        "judged",
        "as trio, with a reward for each turn of a clone",
        _trio,
        _TRIO,
        token_price=_PRICE,
        judged={"<ans>1<end>": 0.75, "<ans>2<end>": -0.25},
    ),
    Game(
        "words",
        "a root that writes one of two words before its call, and whose last turn depends on that word",
        _words,
        Payoff({"0": 0.25, "1": 1.0, "2": 0.125, "3": 0.5}),
        draw=0,
    ),
    Game(
        "uneven",
        "groups of three whose trees differ in depth, size and failures",
        _uneven,
        Payoff({"0": 0.25, "1": 1.0, "2": 0.5, "11": 0.75, "12": 0.125, "21": 0.875, "22": 0.375}),
        replace(Limits(max_turns=2), max_depth=2),
        token_price=_PRICE / 4,
        malformed_price=1 / 16,
        group_size=3,
    ),
    Game(
        "coupled",
        "the tokens that clones leave decide what the root can still do",
        _coupled,
        Payoff({"0": 0.25, "11": 0.5, "12": 0.75, "21": 0.375, "22": 1.0, "111": 1.0, "121": 0.875}),
        Limits(total_tokens=46, reply_tokens=2, answer_reserve=4, max_turns=3),
        token_price=_PRICE / 4,
        draw=12,
    ),
)

GAMES: Mapping[str, Game] = {game.name: game for game in _ALL}
