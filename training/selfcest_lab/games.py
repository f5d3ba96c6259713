"""Small delegation games, each with a way for credit to go wrong. They are played by the real kernel and rollout.

An agent chooses among a handful of generations per context; payoffs are multiples of 1/32, so that returns are exact in
every precision. "Noisy" games add a chance of their own to what comes after the join: the root's last turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase

from selfcest_agents.codec import TerseCodec
from selfcest_agents.tiny import TinyTokenizer
from selfcest_env.graders import ExactMatch, Grade
from selfcest_env.graders.cells import Cells
from selfcest_env.process import ProcessTerm, Step
from selfcest_env.record import EpisodeRecord
from selfcest_env.reward import MalformedCost, Reward, RewardTerm, Score, TokenCost
from selfcest_env.rules import Rules
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Limits, Task
from selfcest_env.views import Observation
from selfcest_lab.tabular import Menu, Table, seeded_logit


@dataclass(frozen=True)
class Payoff:
    """A reward term: what the root's final answer is worth, `otherwise` for any answer not listed and for none."""

    by_answer: Mapping[str, float]
    otherwise: float = 0.0

    def __call__(self, record: EpisodeRecord, grade: Grade) -> float:
        return self.by_answer.get(record.answer or "", self.otherwise)


@dataclass(frozen=True)
class Judged(ProcessTerm):
    """A reward term: what a clone's turn is worth by what it wrote, 0 for any text not listed and for the root."""

    by_text: Mapping[str, float]

    def judge(self, steps: Sequence[Step]) -> list[float]:
        return [self.by_text.get(step.text, 0.0) if step.depth else 0.0 for step in steps]


@dataclass(frozen=True)
class Game:
    """One game.

    Attributes:
        name, about: for tables.
        menu: what an agent may write.
        payoff: worth of the final answer.
        judged: worth of a clone's turn by what it wrote, where turns are judged one by one besides.
        cells: where it is graded cell by cell besides: the right answer, a character for each document of `A`, `B`, ...
        limits: the kernel's.
        token_price: for every token of the tree.
        malformed_price: for every malformed turn.
        group_size: episodes of a group, where the game is about that; `None`: as the laboratory is told.
        draw: of the policy's logits; here the first under which the root delegates with a probability of 0.7 to 0.95.
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
        return Rules(self.limits, TerseProtocol(), TerseCodec(TinyTokenizer()))

    def table(self) -> Table:
        return Table(TerseCodec(TinyTokenizer()), self.menu, seeded_logit(self.name, self.draw))

    def task(self) -> Task:
        keys = ascii_uppercase[: len(self.cells)]
        return Task(self.name, "?", self.cells, "lab", dict.fromkeys(keys, "1"), metadata={"cells": keys})

    def reward(self) -> Reward:
        terms: dict[str, RewardTerm] = {
            "payoff": self.payoff,
            "token_cost": TokenCost(self.token_price, scale=1.0),
            "malformed": MalformedCost(self.malformed_price),
        }
        if self.judged:
            terms["judged"] = Judged(self.judged)
        return Reward({**terms, "score": Score()}, Cells()) if self.cells else Reward(terms, ExactMatch())


def _answers(*texts: str) -> list[str]:
    return [f"<ans>{text}<end>" for text in texts]


def _call(*objectives: str) -> str:
    return f"<call>{'<sep>'.join(objectives)}</call>"


def _replies(observation: Observation) -> list[str]:
    """All replies so far in order, 0 for one that is no number."""
    replies = [reply.text or "" for exchange in observation.exchanges for reply in exchange.replies]
    return [text if text.isdecimal() else "0" for text in replies]


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
    below = {"": "x", "x": "y", "y": "z"}.get("" if observation.agent_id == ROOT else observation.brief.text)
    if below is None:
        return _answers("1", "2")
    given_up = str(2 + observation.agent_id.depth) if observation.agent_id != ROOT else "0"
    if not replies:
        return [_call(below), *_answers(given_up)]
    return _answers(replies) if observation.agent_id == ROOT else _answers(replies, "5")


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
    return _answers(replies, "3") if replies else [f"{word}{_call('x')}" for word in "ab"] + _answers("0")


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
    if observation.agent_id != ROOT:
        return [*_answers("1"), "9999<ans>2<end>"]
    match _replies(observation):
        case []:
            return [_call("x", "y"), *_answers("0")]
        case [x, y]:
            return [_call("z"), f"88888888<ans>{x}{y}<end>", *_answers(f"{x}{y}")]
        case replies:
            return _answers("".join(replies))


_TRIO = Payoff({"0": 0.25, "111": 1.0, "112": 0.5, "121": 0.625, "211": 0.125, "122": 0.25, "221": 0.875, "222": 0.75})
_PAIR = Payoff({"0": 0.25, "11": 1.0, "12": 0.125, "21": 0.25, "22": 0.5, "121": 0.75, "122": 0.875})
_PRICE = 1 / 64

_ALL = (
    Game("pair", "one call, two clones, the root joins their replies", _pair(False), _PAIR, token_price=_PRICE, draw=2),
    Game("pair_noisy", "as pair, with a root that may misread", _pair(True), _PAIR, token_price=_PRICE, draw=1),
    Game(
        "series",
        "two calls in series; the second asks for what the first found",
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
        "clones that may err, recover or fail",
        _gated,
        Payoff({"0": 0.25, "11": 1.0, "12": 0.25, "21": 0.5, "22": 0.75, "01": 0.875, "10": 0.5, "20": 0.75}),
        Limits(max_turns=2),
        token_price=_PRICE / 2,
        malformed_price=1 / 16,
        draw=3,
    ),
    Game(
        "dummy",
        "two clones, and nobody heeds the second",
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
        "one call of three clones, whose replies count together",
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
        "two clones that answer for a document each, and a return that is a sum over them",
        _cells(False),
        Payoff({"0": 0.25}),
        token_price=_PRICE / 4,
        cells="12",
        draw=3,
    ),
    Game(
        "cells_misread",
        "as cells, with a root that misreads one reply more or less often for what the other is",
        _cells(True),
        Payoff({"0": 0.25}),
        token_price=_PRICE / 4,
        cells="12",
        draw=1,
    ),
    Game(
        "two_deep",
        "a clone that may have a clone, with few enough outcomes for two rounds of replays",
        _two_deep,
        Payoff({"0": 0.25, "3": 0.5, "1": 1.0, "2": 0.125}),
        replace(Limits(max_turns=4), max_depth=2),
        token_price=_PRICE / 2,
        draw=1,
    ),
    Game(
        "judged",
        "as trio, with clones whose turns are judged one by one",
        _trio,
        _TRIO,
        token_price=_PRICE,
        judged={"<ans>1<end>": 0.75, "<ans>2<end>": -0.25},
    ),
    Game(
        "words",
        "a root that says one of two words beside its call, and decides in the end by what it said",
        _words,
        Payoff({"0": 0.25, "1": 1.0, "2": 0.125, "3": 0.5}),
        draw=0,
    ),
    Game(
        "uneven",
        "groups of three whose trees differ in depth, in size and in who fails",
        _uneven,
        Payoff({"0": 0.25, "1": 1.0, "2": 0.5, "11": 0.75, "12": 0.125, "21": 0.875, "22": 0.375}),
        replace(Limits(max_turns=2), max_depth=2),
        token_price=_PRICE / 4,
        malformed_price=1 / 16,
        group_size=3,
    ),
    Game(
        "coupled",
        "what clones leave decides what the root can still do",
        _coupled,
        Payoff({"0": 0.25, "11": 0.5, "12": 0.75, "21": 0.375, "22": 1.0, "111": 1.0, "121": 0.875}),
        Limits(total_tokens=46, reply_tokens=2, answer_reserve=4, max_turns=3),
        token_price=_PRICE / 4,
        draw=12,
    ),
)

GAMES: Mapping[str, Game] = {game.name: game for game in _ALL}
