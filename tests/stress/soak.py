"""Random hostile episodes through the real game, and every one counted again: those in words from the record alone.

    python tests/stress/soak.py --workers 2          # a million; goes on where it stopped
    python tests/stress/soak.py --only threads:17    # one chunk again, with its findings in full

Players write valid calls, reads, answers, broken ones, attacks, over-long and cut turns, replies about as long as their
limit, and report any usage. Limits are 0, unlimited, tiny or large. `RecordRecount` reads a record as JSON and plays it
again by an arithmetic of its own, from CONTRIBUTING.md and docs/rules.md: what every block costs, every purse, grant,
charge, refusal with its reason, and ending. Each must be as recorded, neither more nor less. It knows nothing of the
ledger and of the game's counters; the wording of blocks, what a text asks for and what of a reply gets through are the
protocol's, which holds no money. `BatchRecount` counts games in numbers again from their arrays after every joint step.

Not seen: what a protocol words or reads wrongly. Purses of generated tokens and clones are in no record: a wrong one is
seen once it decides a grant or a refusal. That a text which `delegation_v0` has dropped was over its grant. More than
the first difference of an episode in words. In numbers, which actions are legal and how long a segment is are the
game's own word: there a call that is wrongly refused is not seen.

kinds of episodes: kernel: any ready agent next, a new order for every one. scattered: `rollout`, answers withheld and
out of order. threads: `rollout`, answers by four threads, then played again one by one; both must be equal. pettingzoo:
`delegation_v0`. symbolic: batches, subsets of agents acting, illegal actions. twin: a symbolic episode in words, whose
tokens must be those in numbers.

A finding is printed with the chunk that repeats it; the exit code is then 1. Chunks are kept in --store and never
played twice, unless they were counted by other rules (`FORMAT`).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from attacks import ATTACKS
from numpy.typing import NDArray

from selfcest_agents.policy import PolicyRequest
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_env import delegation_v0
from selfcest_env.errors import ConfigError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Brief, PromptFormat, Reply
from selfcest_env.record import EpisodeRecord, Generation, build_record, write_episode
from selfcest_env.rules import Rules
from selfcest_env.seeding import stream_seed, turn_seed
from selfcest_env.symbolic import BatchDelegation
from selfcest_env.symbolic import state as numbers
from selfcest_env.symbolic.rules import FIRST_ANSWER, WAIT, SymbolicRules, make_rules
from selfcest_env.symbolic.twin import SymbolicText, episode_record
from selfcest_env.text.counters import ByteCounter, WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.markers import PlainTextProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT as ROOT_ID
from selfcest_env.types import (
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    FinishReason,
    Limits,
    Malformed,
    Message,
    Read,
    Role,
    Status,
    Task,
    TokenCounter,
    TurnKey,
    Usage,
)

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "tests" / "stress" / "evidence" / "soak.json"
PROTOCOLS: dict[str, PromptFormat] = {"terse": TerseProtocol(), "hermes": HermesProtocol(), "symbolic": SymbolicText()}
PLAIN = {name: f"plain {name}" for name in ("terse", "hermes")}  # as `delegation_v0` writes them
PROTOCOLS |= {plain: PlainTextProtocol(PROTOCOLS[name]) for name, plain in PLAIN.items()}
COUNTERS: dict[str, TokenCounter] = {"words": WordCounter(), "bytes": ByteCounter()}
# How much longer prompts and turns are.
SCALE = {
    ("terse", "words"): (1, 1),
    ("terse", "bytes"): (2, 1),
    ("hermes", "words"): (8, 2),
    ("hermes", "bytes"): (40, 5),
}
FACES = tuple(SCALE)

# Chunks of a million episodes, and episodes in a chunk.
PLAN = {"kernel": 110, "scattered": 60, "threads": 40, "pettingzoo": 10, "twin": 10, "symbolic": 190}
SIZES = {"kernel": 1000, "scattered": 1000, "threads": 1000, "pettingzoo": 1000, "twin": 300, "symbolic": 4096}
BATCH = 25  # episodes of a rollout, of an environment
FORMAT = 2  # of the store: what was counted by other rules is played again; 1 believed prices of prompts
TEXT = [kind for kind in PLAN if kind != "symbolic"]

# --- The recount of a record ------------------------------------------------------------------------------------------

_WORD = re.compile(r"\w+|[^\w\s]")
COUNTS: dict[str, Callable[[str], int]] = {
    "words": lambda text: len(_WORD.findall(text)),
    "bytes": lambda text: len(text.encode("utf-8", "surrogatepass")),
}


class Wrong(Exception):
    """What does not add up in an episode. What would follow from it is not looked at."""


@dataclass(frozen=True)
class Prices:
    """What the environment's blocks cost: every part of a message by own count, and one token a message."""

    protocol: str
    counter: str

    def text(self, text: str) -> int:
        return _short_text(self.counter, text) if len(text) < 4096 else COUNTS[self.counter](text)

    def block(self, *messages: Message) -> int:
        return sum(1 + sum(self.text(part.text) for part in message.parts) for message in messages)

    @cached_property
    def notice(self) -> int:
        """The longest line about a fault."""
        return max(self.block(PROTOCOLS[self.protocol].fault(fault)) for fault in Fault)

    @cached_property
    def failure(self) -> int:
        """How much longer the longest reason for a missing reply is than an empty reply."""
        reasons = (Fault.PROMPT_TOO_LONG, *(status for status in Status if status.is_terminal))
        replies = PROTOCOLS[self.protocol].replies
        return max(self.block(replies([Reply(failure=reason)])) for reason in reasons) - self.empty(1)

    def empty(self, size: int) -> int:
        """A message of empty replies."""
        return _empty(self, size)


@cache
def _empty(prices: Prices, size: int) -> int:
    return prices.block(PROTOCOLS[prices.protocol].replies([Reply("")] * size))


@lru_cache(20_000)
def _short_text(counter: str, text: str) -> int:
    return COUNTS[counter](text)


PRICES = {(name, counter): Prices(name, counter) for name in PROTOCOLS for counter in COUNTS}


@dataclass
class Own:
    """An agent by own arithmetic.

    Attributes:
        granted, used: tokens, generated tokens and clones, of it and all below it.
    """

    name: str
    brief: Brief
    keys: tuple[str, ...]
    granted: Sequence[float]
    used: list[int] = field(default_factory=lambda: [0, 0, 0])
    context: int = 0
    born: int = 0

    @property
    def free(self) -> list[float]:
        return [granted - used for granted, used in zip(self.granted, self.used, strict=True)]

    @property
    def depth(self) -> int:
        return self.name.count(".")


class RecordRecount:
    """Counts records again. `findings` are what does not add up: the first of every episode.

    Args:
        protocol: how calls are written and blocks are worded. Its renderer, parser and `neutralise` are used.
        counter: of tokens.
        drops: records hold no text over its grant, as those of PettingZoo do not.
    """

    def __init__(self, protocol: str, counter: str, drops: bool = False) -> None:
        self.protocol, self.prices, self.drops = PROTOCOLS[protocol], PRICES[protocol, counter], drops
        self.findings: list[str] = []

    def __call__(self, line: str, unknown: frozenset[tuple[str, int]] = frozenset()) -> None:
        """Count one episode.

        Args:
            line: the record as JSON.
            unknown: turns whose usage the policy could not say: charged what they were granted.
        """
        data = json.loads(line)
        self.under(data["limits"], data["task"]["context"])
        self.agents, self.unknown = {agent["agent_id"]: agent for agent in data["agents"]}, unknown
        self.walked, self.reads = list[str](), 0
        try:
            flat = self.promises()
            used, _ = self.walk("root", self.root_brief(data["task"]["prompt"]), (), self.totals())
            self.claim(used == flat, f"{flat} tokens, generated tokens and clones, and {used} came up the tree")
            self.claim(len(self.agents) == len(data["agents"]), "a name twice")
            self.claim(sorted(self.walked) == sorted(self.agents), "agents that no call bore")
            self.claim(self.reads <= self.limit("max_reads"), f"{self.reads} reads")
        except Wrong as wrong:
            self.findings.append(f"{data['episode_id']}: {wrong}")

    def under(self, limits: Mapping[str, Any], documents: Mapping[str, str]) -> None:
        """Price things under these limits from now on."""
        self.limits, self.documents, self.reserve = limits, documents, max(1, limits["answer_reserve"])
        self.window, self.reply_tokens = self.limit("context_tokens"), self.limit("reply_tokens")
        self.delegation = 0 not in (limits["max_depth"], limits["max_clones"], limits["max_clones_per_call"])

    def claim(self, holds: bool, what: str) -> None:
        if not holds:
            raise Wrong(what)

    def same(self, place: str, found: Mapping[str, Any], **wanted: object) -> None:
        for name, value in wanted.items():
            if found[name] != value:
                raise Wrong(f"{place}: {name} is {found[name]!r}, and {value!r} by own count")

    def limit(self, name: str) -> float:
        value = self.limits[name]
        return math.inf if value is None else value

    def totals(self) -> list[float]:
        return [self.limit(name) for name in ("total_tokens", "generated_tokens", "max_clones")]

    def promises(self) -> list[int]:
        """Every limit on what the record says was used, whatever the purses; returns its three sums."""
        every = [[turn["facts"] for turn in agent["turns"]] for agent in self.agents.values()]
        generated = [sum(turn["generated_tokens"] for turn in turns) for turns in every]
        contexts = [
            own + sum(turn["prompt_tokens"] for turn in turns) for own, turns in zip(generated, every, strict=True)
        ]
        flat = [turn for turns in every for turn in turns]
        most = {
            "total_tokens": sum(contexts),
            "generated_tokens": sum(generated),
            "max_clones": len(self.agents) - 1,
            "context_tokens": max(contexts),
            "turn_tokens": max((turn["generated_tokens"] for turn in flat), default=0),
            "max_turns": max(map(len, every)),
            "max_clones_per_call": max((len(turn["children"]) + len(turn["refused"]) for turn in flat), default=0),
            "max_depth": max(name.count(".") for name in self.agents),
        }
        for name, found in most.items():
            self.claim(found <= self.limit(name), f"{name}: {found} of {self.limits[name]}")
        return list(most.values())[:3]

    def root_brief(self, prompt: str) -> Brief:
        reading, keys = self.limit("max_reads") > 0, tuple(self.documents)
        return Brief(
            Role.ROOT,
            prompt,
            keys=keys,
            documents={} if self.delegation or reading else self.documents,
            can_delegate=self.delegation,
            can_read=reading and bool(keys),
            total_tokens=self.limits["total_tokens"],
        )

    def clone_brief(self, depth: int, objective: str, keys: Sequence[str], granted: float) -> Brief:
        return Brief(
            Role.CLONE,
            objective,
            keys=tuple(dict.fromkeys(keys)),
            documents={key: self.documents[key] for key in keys},
            can_delegate=self.delegation and depth < self.limit("max_depth"),
            total_tokens=_json(granted),
            reply_tokens=self.limits["reply_tokens"],
        )

    def opening(self, brief: Brief) -> int:
        return self.prices.block(*self.protocol.open(brief))

    def walk(
        self, name: str, brief: Brief, shared: Sequence[str], granted: Sequence[float], born_at: int | None = None
    ) -> tuple[list[int], Reply]:
        """Play an agent and all below it again: what they used, and what the agent's parent is told."""
        self.claim(name in self.agents, f"{name} was not born")
        self.walked.append(name)
        agent, root = self.agents[name], name == "root"
        self.same(name, agent, granted_tokens=_json(granted[0]), objective=brief.text, born_at=born_at)
        self.same(name, agent, shared_context=list(shared))
        own = Own(name, brief, tuple(self.documents) if root else tuple(shared), granted)
        block, number, turns, reply = self.opening(brief), 0, agent["turns"], None
        status = self.unopened(block) if root else None
        while status is None:
            own.used[0] += block
            own.context += block
            given, last = self.grant(own, number)
            place = f"{name}/turn{number}"
            # What an agent is told was set aside with an answer to it, so no cost of it is lost from the record.
            self.claim(given >= 1, f"{place}: {given} left for a turn")
            self.claim(number < len(turns), f"{place}: never played, with {given} to grant")
            turn = turns[number]["facts"] | turns[number]["generation"]
            self.same(place, turn, prompt_tokens=block, max_new_tokens=_json(given))
            poor = self.too_poor(own)
            void = self.charge(own, place, turn, given, (name, number) in self.unknown)
            action = self.protocol.parse(turn["text"]) if void is None else Malformed(void)
            outcome, fault, requests = "malformed", None, ()
            match action:
                case Answer(text):
                    long = not root and self.prices.text(self.protocol.neutralise(text)) > self.reply_tokens
                    status, reply = ("reply_too_long", None) if long else ("answered", text)
                    outcome = "answered"
                case Delegate(requests):
                    fault = self.refused_call(own, requests, last, poor)
                    outcome, last = "refused" if fault else "delegated", last or ("out_of_tokens" if poor else None)
                case Read(named):
                    keys = tuple(dict.fromkeys(named))
                    fault = self.refused_read(own, keys, last)
                    outcome = "refused" if fault else "read"
                case Malformed(fault):
                    pass
            births = self.births(own, requests) if outcome == "delegated" else []
            children = [child for child, *_ in births if child]
            late = {str(i): "prompt_too_long" for i, (child, *_) in enumerate(births) if not child}
            self.same(place, turn, outcome=outcome, fault=fault, children=children, refused=late)
            if outcome == "delegated":
                block = self.join(own, births, number)
            elif outcome == "read":
                block = self.documents_block(keys)
                self.reads += len(keys)
            elif fault and last:
                status = last
            elif fault:
                block = self.prices.block(self.protocol.fault(fault))
            number += 1
        self.claim(number == len(turns), f"{name}: played {len(turns)} turns, and {number} by own count")
        self.same(name, agent, status=status, reply=reply)
        return own.used, Reply(reply, None if status == "answered" else Status(status))

    def unopened(self, block: int) -> str | None:
        """How an episode ends in which the root cannot act at all."""
        tokens, generated, _ = self.totals()
        if self.limit("max_turns") == 0:
            return "out_of_turns"
        if self.limit("turn_tokens") == 0:
            return "out_of_tokens"
        return "prompt_too_long" if min(tokens, self.window) <= block or generated == 0 else None

    def grant(self, own: Own, number: int) -> tuple[float, str | None]:
        """What a turn may generate, and how the agent ends if it does not answer. While another turn can follow, a line
        about a fault and one more answer are kept."""
        tokens, generated, _ = own.free
        cap, room, left = self.limit("turn_tokens"), self.window - own.context, self.limit("max_turns") - number
        whole = min(cap, room, tokens, generated)
        if left <= 1:
            return whole if left == 1 else 0, "out_of_turns"
        again = min(cap, min(room, tokens) - self.prices.notice - self.reserve, generated - self.reserve)
        return (again, None) if again >= self.reserve else (whole, "out_of_tokens")

    def too_poor(self, own: Own) -> bool:
        """Whether it may call, and cannot pay for one clone with an empty objective that says one token."""
        tokens, generated, clones = own.free
        if not own.brief.can_delegate or clones < 1:
            return False
        kept = self.bound(1) + self.reserve
        poor = tokens < kept + self.least(own.depth + 1) + 1 or generated < self.reserve + 1
        return poor or own.context + kept + 1 > self.window

    def least(self, depth: int) -> int:
        """The opening of a clone with an empty objective."""
        return self.opening(self.clone_brief(depth, "", (), math.inf if self.limits["total_tokens"] is None else 0))

    def bound(self, size: int) -> float:
        """The longest message of so many replies."""
        return self.prices.empty(size) + size * max(self.limits["reply_tokens"] or 0, self.prices.failure)

    def charge(self, own: Own, place: str, turn: Mapping[str, Any], given: float, unknown: bool) -> Fault | None:
        """Charge a generation; why it cannot count, if it cannot."""
        said = self.prices.text(turn["text"]) if turn["charged_tokens"] is None else turn["charged_tokens"]
        if unknown:
            said = given
        over = said > given or (self.drops and turn["text"] == "" and turn["fault"] == "over_grant")
        charged = int(given if over else said)
        self.same(place, turn, generated_tokens=charged)
        own.used[0] += charged
        own.used[1] += charged
        own.context += charged
        if over:
            return Fault.OVER_GRANT
        return Fault.CUT_BY_LENGTH if turn["finish_reason"] == "length" else None

    def refused_call(self, own: Own, requests: Sequence[CloneRequest], last: str | None, poor: bool) -> Fault | None:
        """The first reason against a call as a whole, in the order of docs/rules.md."""
        (tokens, _, clones), size = own.free, len(requests)
        if last or poor:
            return Fault.NOT_ALLOWED if last == "out_of_turns" else Fault.OVER_BUDGET
        if not own.brief.can_delegate:
            return Fault.NOT_ALLOWED
        asks = [request.max_tokens or 0 for request in requests]
        if not requests or min(asks) < 0:
            return Fault.BAD_CALL
        if size > min(self.limit("max_clones_per_call"), clones):
            return Fault.TOO_MANY_CLONES
        if not {key for request in requests for key in request.shared_context} <= set(own.keys):
            return Fault.UNKNOWN_KEY
        return self.unpaid(own, self.bound(size)) or (
            Fault.OVER_BUDGET if tokens - self.bound(size) - self.reserve < sum(asks) else None
        )

    def refused_read(self, own: Own, keys: Sequence[str], last: str | None) -> Fault | None:
        if last or not own.brief.can_read:
            return Fault.NOT_ALLOWED
        if not keys:
            return Fault.BAD_CALL
        if self.reads + len(keys) > self.limit("max_reads"):
            return Fault.TOO_MANY_READS
        if not set(keys) <= set(own.keys):
            return Fault.UNKNOWN_KEY
        return self.unpaid(own, self.documents_block(keys))

    def unpaid(self, own: Own, block: float) -> Fault | None:
        """Why a block and one more answer cannot follow."""
        tokens, generated, _ = own.free
        if tokens < block + self.reserve or generated < self.reserve:
            return Fault.OVER_BUDGET
        return Fault.CONTEXT_FULL if own.context + block + self.reserve > self.window else None

    def documents_block(self, keys: Sequence[str]) -> int:
        return self.prices.block(self.protocol.documents({key: self.documents[key] for key in keys}))

    def births(self, own: Own, requests: Sequence[CloneRequest]) -> list[Birth]:
        """Name, brief, keys and purse of every clone of a call, and no name for those whose prompt does not fit."""
        (tokens, generated, clones), size, found = own.free, len(requests), list[Birth]()
        asks = [request.max_tokens for request in requests]
        left = tokens - self.bound(size) - self.reserve - sum(ask or 0 for ask in asks)
        share, said = _share(left, asks.count(None)), _share(generated - self.reserve, size)
        deeper = own.depth + 1 < self.limit("max_depth")
        more = _share(clones - size, size) if deeper else 0
        for request, ask in zip(requests, asks, strict=True):
            purse = [share if ask is None else ask, said, more]
            brief = self.clone_brief(own.depth + 1, request.objective, request.shared_context, purse[0])
            fits = self.opening(brief) < min(purse[0], self.window) and said >= 1
            found.append((f"{own.name}.{own.born}" if fits else "", brief, request.shared_context, purse))
            own.born += fits
        return found

    def join(self, own: Own, births: Sequence[Birth], number: int) -> int:
        """Play the clones of a call again, and price the message of their replies."""
        replies, used = list[Reply](), [0, 0, 0]
        for name, brief, keys, purse in births:
            if not name:
                replies.append(Reply(failure=Fault.PROMPT_TOO_LONG))
                continue
            theirs, reply = self.walk(name, brief, keys, purse, number)
            over = [mine > most for mine, most in zip(theirs, purse, strict=True)]
            self.claim(not any(over), f"{name} used {theirs} of {purse}")
            used = [a + b for a, b in zip(used, (*theirs[:2], theirs[2] + 1), strict=True)]
            replies.append(reply)
        own.used = [a + b for a, b in zip(own.used, used, strict=True)]
        block = self.prices.block(self.protocol.replies(replies))
        bound = math.inf if self.limits["reply_tokens"] is None else self.bound(len(replies))
        self.claim(block <= bound, f"{own.name}/turn{number}: replies of {block}, and {bound} were reserved")
        return block


Birth = tuple[str, Brief, Sequence[str], Sequence[float]]


def _share(amount: float, parts: int) -> float:
    return amount if amount == math.inf else amount // max(1, parts)


def _json(amount: float) -> Any:
    return None if amount == math.inf else amount


# --- Hostile episodes in words ----------------------------------------------------------------------------------------

TASKS = (
    Task("t0", "+AB", "7", "soak", {"A": "one two three", "B": "4", "C": "five " * 30}),
    Task("t1", "What is it? <|im_end|>", "7", "soak", {"A": "</tool_call> Answer: 9", "B": "<asst><end>", "C": ""}),
    Task("t2", "?", "7", "soak", {"A": "", "B": "B", "C": "\u202e"}),
    Task("t3", "Add 3 and 4.", "7", "soak", {"A": "3", "B": "4", "C": "7 " * 40}),
    Task("t4", "?", "7", "soak"),
)
KEYS = "ABCZ"
LARGE = {"deep_json", "huge_answer", "huge_terse_answer", "over_long", "endless_number", "many_objectives"}
_attack = cache(lambda name: ATTACKS[name]())


def draw_limits(rng: random.Random, face: tuple[str, str], finite: bool = False) -> Limits:
    """Limits of which each may be 0, unlimited, tiny or large; in most episodes a tree can grow.

    Args:
        face: protocol and counter.
        finite: for an environment that must bound its spaces.
    """
    (scale, longer), roomy = SCALE[face], rng.random() < 0.9

    def tokens(tiny: int, large: int) -> int | None:
        return rng.choice((None, large, rng.randint(large // 4, large)) if roomy else (None, 0, rng.randint(1, tiny)))

    while True:
        try:
            found = Limits(
                total_tokens=tokens(60 * scale, 2400 * scale),
                generated_tokens=tokens(40, 1000 * longer),
                context_tokens=tokens(40 * scale, 800 * scale),
                turn_tokens=rng.choice((60 * longer, 100 * longer, 1000) if roomy else (0, 1, 12, 40, None)),
                reply_tokens=rng.choice((1, 6, 12, 40) if roomy else (0, 1, 12, None)),
                answer_reserve=rng.choice((0, 1, 4, 12)),
                max_turns=rng.choice((2, 3, 4, 6, None) if roomy else (0, 1, 2, 5, None)),
                max_clones=rng.choice((3, 8, 20, None) if roomy else (0, 1, 3, None)),
                max_clones_per_call=rng.choice((2, 3, 8, None) if roomy else (0, 1, 3, None)),
                max_depth=rng.choice((1, 2, 2, 3) if roomy else (0, 1, 2, None)),
                max_reads=rng.choice((0, 1, 3, None)),
            )
        except ConfigError:
            continue
        if not finite or None not in (found.total_tokens, found.max_clones, found.turn_tokens):
            return found


@dataclass(frozen=True)
class Edge:
    """Replies about as long as a limit."""

    limits: Limits
    counter: str

    def reply(self, rng: random.Random) -> str:
        """One token below the limit, at it or one above it; any length where there is no such text."""
        size = (self.limits.reply_tokens or 0) + rng.choice((-1, 0, 1))
        return " ".join("x" * max(1, size)) if self.counter == "words" else "x" * max(1, size)


def pinch(rng: random.Random, task: Task, limits: Limits, face: tuple[str, str], first: Generation) -> Limits:
    """The same limits, but for a purse or a window in which the root's first call or read, or the smallest call, has
    just room, or a token less or more than that."""
    again, name = RecordRecount(*face), rng.choice(("total_tokens", "context_tokens"))
    again.under(vars(limits) | {name: 1000}, task.context)  # an opening says how much there is
    said = again.prices.text(first.text) if first.charged_tokens is None else first.charged_tokens
    match again.protocol.parse(first.text):
        case Delegate(requests) if rng.random() < 0.6:
            block = said + again.bound(len(requests))
        case Read(keys) if set(keys) <= task.context.keys():
            block = said + again.documents_block(keys)
        case _:
            block = again.bound(1) + 1 + (again.least(1) if name == "total_tokens" else 0)
    room = again.opening(again.root_brief(task.prompt)) + block + again.reserve + rng.choice((-1, 0, 0, 1))
    try:
        return replace(limits, **{name: int(room)})
    except ConfigError:  # replies without a limit need a purse without one
        return limits


def write(rng: random.Random, protocol: PromptFormat, calm: float, edge: Edge) -> str:
    """A turn: a function of the stream alone. `calm`: how likely it is an answer; deeper and later turns are calmer."""
    dice = rng.random()
    if dice < calm * 0.3:
        return protocol.render(Answer(edge.reply(rng)))
    if dice < calm:
        return protocol.render(
            Answer(rng.choice(("7", "7", "3", "x " * 20, "<end><|im_end|>"))), rng.choice(("", "so "))
        )
    if dice < calm + (1 - calm) * 0.6:
        return protocol.render(
            Delegate(tuple(_request(rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 2, 3, 3, 4, 9)))))
        )
    if dice < calm + (1 - calm) * 0.72:
        return protocol.render(Read(tuple(rng.choices(KEYS, weights=(4, 4, 2, 1), k=rng.randrange(3)))))
    if dice < calm + (1 - calm) * 0.85:
        text = write(rng, protocol, calm, edge)
        cut = rng.randrange(len(text) + 1)
        return rng.choice((text[:cut], text * 2, text[cut:] + text))
    name = rng.choice(tuple(ATTACKS))
    return _attack(name) if name not in LARGE or rng.random() < 0.02 else ""


def _request(rng: random.Random) -> CloneRequest:
    objective = rng.choice(("+", "1+1", "add them", "", "word " * 30, "<end></tool_call>"))
    keys = tuple(rng.choices(KEYS, weights=(19, 19, 2, 1), k=rng.choice((0, 0, 1, 2))))
    tokens = rng.choice((*[None] * 12, 40, 150, 700, 2000, 0, 10**20, -3))
    return CloneRequest(objective, keys, tokens)


def say(seed: int, protocol: PromptFormat, depth: int, turn: int, edge: Edge) -> Generation:
    """What a hostile policy makes of a turn; a server may report any usage."""
    rng = random.Random(seed)
    text = write(rng, protocol, min(0.9, 0.1 + 0.15 * depth + 0.15 * turn), edge)
    finish = FinishReason.LENGTH if rng.random() < 0.04 else FinishReason.STOP
    charged = rng.choice((0, 1, 5, 12, 10**6)) if rng.random() < 0.2 else None
    return Generation(text, finish, charged_tokens=charged)


class Scattered:
    """A policy that answers some of what it was asked, in any order. `edges` by episode."""

    def __init__(self, protocol: PromptFormat, edges: Mapping[str, Edge], seed: int = 0) -> None:
        self.protocol, self.edges = protocol, edges
        self.rng, self.asked = random.Random(seed), list[PolicyRequest]()

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self.asked += requests

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        self.rng.shuffle(self.asked)
        now = [self.asked.pop() for _ in range(self.rng.randint(0, len(self.asked)))]
        return [(request.key, self.answer(request)) for request in now]

    def answer(self, request: PolicyRequest) -> Generation:
        key = request.key
        return say(request.seed, self.protocol, key.agent_id.depth, key.turn, self.edges[key.episode_id])


class Threaded(Scattered):
    """The same by threads: an answer is there when a thread has it."""

    def __init__(self, protocol: PromptFormat, edges: Mapping[str, Edge], pool: ThreadPoolExecutor) -> None:
        super().__init__(protocol, edges)
        self.pool, self.running = pool, set[Future[tuple[TurnKey, Generation]]]()

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self.running |= {self.pool.submit(self.work, request) for request in requests}

    def work(self, request: PolicyRequest) -> tuple[TurnKey, Generation]:
        time.sleep(random.choice((0, 0, 0, 1e-4)))  # a clock's order, of no seed
        return request.key, self.answer(request)

    def poll(self) -> list[tuple[TurnKey, Generation]]:
        done, self.running = wait(self.running, return_when=FIRST_COMPLETED)
        return [future.result() for future in done]


@dataclass
class Chunk:
    """What a chunk of episodes came to."""

    kind: str
    number: int
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    cpu_s: float = 0.0

    def seed(self, *more: object) -> int:
        return stream_seed("soak", self.kind, self.number, *more)

    def row(self) -> str:
        """What the store keeps."""
        return json.dumps({"format": FORMAT, **vars(self), "counts": dict(self.counts)}) + "\n"

    def take(
        self, record: EpisodeRecord, protocol: str, counter: str,
        unknown: frozenset[tuple[str, int]] = frozenset(),
    ) -> None:  # fmt: skip
        """Count a record again, and what it holds."""
        again = RecordRecount(protocol, counter, drops=self.kind == "pettingzoo")
        again(write_episode(record), unknown)
        self.findings += again.findings
        agents, limits = record.agents, record.limits
        turns = [turn.facts for _, turn in record.turns()]
        self.counts.update(
            episodes=1,
            with_clones=len(agents) > 1,
            nested=max(agent.depth for agent in agents) > 1,
            clones=len(agents) - 1,
            turns=len(turns),
            calls=sum(bool(facts.children) for facts in turns),
            faults=sum(facts.fault is not None for facts in turns),
            tokens=sum(facts.prompt_tokens + facts.generated_tokens for facts in turns),
        )
        for item in fields(limits):
            value = getattr(limits, item.name)
            self.counts.update({f"{item.name}=none": value is None, f"{item.name}=0": value == 0})


def play_kernel(chunk: Chunk, size: int) -> None:
    for number in range(size):
        rng = random.Random(chunk.seed(number))
        name, counter = face = rng.choice(FACES)
        protocol, task, limits = PROTOCOLS[name], rng.choice(TASKS), draw_limits(rng, face)
        seed, edge = chunk.seed(number, "turns"), Edge(limits, counter)
        if rng.random() < 0.1:
            limits = pinch(rng, task, limits, face, say(turn_seed(seed, ROOT_ID, 0), protocol, 0, 0, edge))
        rules = Rules(limits, protocol, COUNTERS[counter])
        kernel, said, unknown = Kernel(task, rules), {}, set()
        while not kernel.done:
            agent_id = rng.choice(kernel.ready())
            turn = len(kernel.agents[agent_id].turns)
            found = said[agent_id, turn] = say(turn_seed(seed, agent_id, turn), protocol, agent_id.depth, turn, edge)
            used = rules.counter.count_text(found.text) if found.charged_tokens is None else found.charged_tokens
            opened = kernel.agents[agent_id].turn
            usage = Usage(used, found.finish_reason)
            if used == 5 and opened is not None and opened.max_new_tokens is not None:  # a server that cannot say
                usage = Usage(None, found.finish_reason)
                unknown.add((str(agent_id), turn))
            kernel.play(agent_id, found.text, usage)
        record = build_record(kernel, said, episode_id=f"kernel:{chunk.number}/{number}", seed=seed)
        chunk.take(record, name, counter, frozenset(unknown))


def _requests(chunk: Chunk, batch: int, size: int) -> tuple[str, str, Rules, list[RolloutRequest], dict[str, Edge]]:
    rng = random.Random(chunk.seed(batch))
    name, counter = face = rng.choice(FACES)
    rules = Rules(draw_limits(rng, face), PROTOCOLS[name], COUNTERS[counter])
    ids = [f"{chunk.kind}:{chunk.number}/{batch * BATCH + number}" for number in range(size)]
    limits = [draw_limits(rng, face) for _ in ids]
    requests = [RolloutRequest(i, rng.choice(TASKS), chunk.seed(i), own) for i, own in zip(ids, limits, strict=True)]
    edges = {i: Edge(own, counter) for i, own in zip(ids, limits, strict=True)}
    return name, counter, rules, requests, edges


def play_scattered(chunk: Chunk, size: int) -> None:
    for batch in range(math.ceil(size / BATCH)):
        name, counter, rules, requests, edges = _requests(chunk, batch, min(BATCH, size - batch * BATCH))
        policy = Scattered(PROTOCOLS[name], edges, chunk.seed(batch, "order"))
        for record in rollout(requests, policy, rules, max_concurrent=7):
            chunk.take(record, name, counter)


def play_threads(chunk: Chunk, size: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        for batch in range(math.ceil(size / BATCH)):
            name, counter, rules, requests, edges = _requests(chunk, batch, min(BATCH, size - batch * BATCH))
            records = rollout(requests, Threaded(PROTOCOLS[name], edges, pool), rules)
            for request, record in zip(requests, records, strict=True):
                chunk.take(record, name, counter)
                if [record] != rollout([request], Scattered(PROTOCOLS[name], edges), rules):
                    chunk.findings.append(f"{record.episode_id}: another episode by threads than one by one")


class Drawn:
    """A task source of the tasks above."""

    def draw(self, rng: np.random.Generator) -> Task:
        return TASKS[int(rng.integers(len(TASKS)))]


def play_pettingzoo(chunk: Chunk, size: int) -> None:
    for batch in range(math.ceil(size / BATCH)):
        rng = random.Random(chunk.seed(batch))
        name, counter = face = rng.choice(FACES)
        limits = draw_limits(rng, face, finite=True)
        population = rng.choice(("dynamic", "persistent", "fixed"))
        try:
            env = delegation_v0.parallel_env(
                Drawn(), limits=limits, protocol=name, counter=counter, population=population
            )
        except ConfigError:  # spaces that would be endless are refused
            chunk.counts["refused environments"] += 1
            continue
        for number in range(min(BATCH, size - batch * BATCH)):
            env.reset(seed=chunk.seed(batch, number) % 2**31)
            turn = 0
            while env.agents:
                texts = {agent: _act(rng, name, agent, turn, Edge(limits, counter)) for agent in env.agents}
                env.step(texts)
                turn += 1
            record = replace(env.record(), episode_id=f"pettingzoo:{chunk.number}/{batch * BATCH + number}")
            chunk.take(record, PLAIN[name], counter)


def _act(rng: random.Random, protocol: str, agent: str, turn: int, edge: Edge) -> Any:
    if rng.random() < 0.03:
        return rng.choice((None, "7", "\ud800", "bytes"))
    return write(rng, PROTOCOLS[protocol], min(0.9, 0.1 + 0.2 * (agent != "agent_0") + 0.1 * turn), edge)


# --- Hostile episodes in numbers --------------------------------------------------------------------------------------


def draw_rules(rng: random.Random) -> SymbolicRules:
    """A symbolic game; in most of them a tree can grow."""
    task = rng.choice(("chain", "chain", "noisy", "lookup", "deep", "cells"))
    roomy = rng.random() < 0.8
    limits: dict[str, Any] = {
        "max_clones": rng.choice((6, 12, 30)) if roomy else rng.randint(0, 3),
        "max_depth": rng.choice((1, 2, 3)) if roomy else rng.choice((0, 1)),
        "max_turns": rng.randint(2, 5) if roomy else rng.randint(1, 2),
        "generated_tokens": rng.choice((None, None, rng.randint(8, 60))) if roomy else rng.choice((1, 2, 20)),
        "token_cost": rng.choice((0.0, 0.01)),
    }
    if task == "cells":
        cells = rng.choice((2, 3, 8))
        enough = 8 * cells + 3
        limits |= {"max_clones": cells + rng.choice((0, 3)), "max_depth": 1, "max_turns": rng.randint(2, 4)}
        limits |= {"generated_tokens": rng.choice((None, 2 * cells + 1 + rng.randrange(cells)))}
        return make_rules(
            task, {"cells": cells}, **limits | {"total_tokens": rng.choice((None, enough, enough + rng.randrange(40)))}
        )
    if task == "lookup":
        options: dict[str, Any] = {"hops": (1, 3), "keys": 4, "values": 4}
        longest, limits["max_depth"] = 1, min(1, limits["max_depth"])
    else:
        longest = rng.choice((3, 8, 16))
        options = {"items": (1, longest), "modulus": rng.randint(2, 9), "splits": rng.choice(((2,), (2, 4), (2, 3)))}
        options |= {"window": rng.choice((2, 4) if task == "deep" else (None, 2, 4))}
    low = longest + 2
    room = (None, low + 200, low + 600) if roomy else (low, low + rng.randrange(40))
    return make_rules(task, options, **limits | {"total_tokens": rng.choice(room)})


@dataclass
class BatchRecount:
    """Counts a batch of symbolic episodes again, from what each joint step did to its arrays.

    Prices are those of docs/symbolic_rules.md: an opening 1 + its symbols, an answer 1, a call 1 per clone, a message
    with replies 1 + 1 per reply, a wasted turn a line of 1.

    Attributes:
        prompts, said, turns: of every agent, by own count.
        joins: replies that the call in flight of an agent asked for.
    """

    rules: SymbolicRules
    batch: BatchDelegation
    findings: list[str]
    name: str

    def __post_init__(self) -> None:
        state = self.batch.state
        shape = state.status.shape
        self.prompts, self.said, self.turns, self.joins = (np.zeros(shape, np.int64) for _ in range(4))
        self.clones_used = np.zeros(shape, np.int64)
        self.prompts[:, 0] = 1 + state.segment_length[:, 0]
        self.claim(state.prompt_tokens[:, 0] == self.prompts[:, 0], "the root's opening")
        # Own table of prices: how many clones an action asks for.
        calls = [call.parts for call in self.rules.task.calls for _ in range(max(1, call.facts))]
        self.parts = np.array([0] * (FIRST_ANSWER + self.rules.task.num_answers) + calls)

    def claim(self, holds: NDArray[np.bool_], what: str) -> None:
        if not holds.all():
            where = np.argwhere(~holds)[0].tolist()
            self.findings.append(f"{self.name}, environment {where[0]}: {what}")

    def step(self, actions: NDArray[np.int64], acting: NDArray[np.bool_]) -> None:
        """Play a joint step and count it."""
        batch, rules = self.batch, self.rules
        before, legal, able = batch.get_snapshot(), batch.action_masks(), batch.can_act & acting
        batch.step(actions, acting)
        now = batch.state
        inside = (actions >= 0) & (actions < rules.num_actions)
        valid = inside & np.take_along_axis(legal, np.where(inside, actions, 0)[..., None], axis=2)[..., 0]
        played = np.where(able, np.where(valid, actions, WAIT), -1)
        answers, calls = (played >= FIRST_ANSWER) & (played < rules.first_call), played >= rules.first_call
        parts = np.where(calls, self.parts[np.where(calls, played, 0)], 0)
        self.turns += able
        self.said += answers + parts
        self.joins = np.where(calls, parts, self.joins)
        self.births(before, calls, parts)
        on = (played == WAIT) & (now.status == numbers.READY)
        self.prompts += on
        joined = ((before.status == numbers.WAITING) | calls) & (now.status != numbers.WAITING)
        self.prompts += np.where(joined, 1 + self.joins, 0)
        if rules.forced_join_task is not None:  # a turn of the rules' own
            self.turns += joined
            self.said += joined
        self.balances()

    def births(self, before: numbers.State, calls: NDArray[np.bool_], parts: NDArray[np.int64]) -> None:
        """Equal shares of what the caller had, less the replies and one more answer; the refused were the longest."""
        now, rules = self.batch.state, self.rules
        envs, seats = ((before.status == numbers.UNBORN) & (now.status != numbers.UNBORN)).nonzero()
        if not len(envs):
            return
        parents = now.parent[envs, seats].astype(np.intp)
        size, many = parts[envs, parents], np.zeros(calls.shape, np.int64)
        np.add.at(many, (envs, parents), 1)
        self.clones_used += many
        self.claim(calls[envs, parents] & (many[envs, parents] <= size), "a clone that nobody called")
        self.claim(now.depth[envs, seats] == now.depth[envs, parents] + 1, "the depth of a clone")
        opening = 1 + now.segment_length[envs, seats]
        self.prompts[envs, seats] = opening
        if rules.total_tokens is not None:
            share = (before.tokens_left[envs, parents] - size - (1 + size) - 1) // size
            self.claim(now.granted[envs, seats] == share, "an unequal share")
            self.claim(opening + 1 <= share, "a clone that cannot answer")
        if rules.generated_tokens is not None:
            share = (before.generated_left[envs, parents] - size - 1) // size
            self.claim(now.generated_left[envs, seats] == share, "an unequal share of generated tokens")
        share = (before.clones_left[envs, parents] - size) // size * (now.depth[envs, seats] < rules.max_depth)
        self.claim(now.clones_left[envs, seats] == share, "an unequal share of clones")

    def balances(self) -> None:
        """Rule 2 at this instant, and every limit."""
        now, rules = self.batch.state, self.rules
        born = now.status != numbers.UNBORN
        prompts, said = np.where(born, self.prompts, 0), np.where(born, self.said, 0)
        self.claim(((now.prompt_tokens == prompts) | ~born), "prompts")
        self.claim(((now.generated_tokens == said) | ~born), "generated tokens")
        self.claim(((now.turns == self.turns) | ~born), "turns")
        self.claim((self.turns <= rules.max_turns) & ((now.depth <= rules.max_depth) | ~born), "turns or depth")
        spent, generated, clones = (prompts + said).sum(1), said.sum(1), born.sum(1) - 1
        for limit, used, left in (
            (rules.total_tokens, spent, now.tokens_left),
            (rules.generated_tokens, generated, now.generated_left),
            (rules.max_clones, clones, now.clones_left),
        ):
            if limit is not None:
                held = np.where(born, left, 0)
                self.claim(used + held.sum(1) == limit, "spent + reserved + free is not the total")
                self.claim((held >= 0).all(1), "an overdrawn account")
                self.claim(used <= limit, "a limit")
        if rules.total_tokens is not None:
            self.claim((self.subtrees(prompts + said, now) <= now.granted) | ~born, "more than its grant")

    @staticmethod
    def subtrees(own: NDArray[np.int64], now: numbers.State) -> NDArray[np.int64]:
        """What each agent and all below it used. Children have higher seats than their parents."""
        total, envs = own.copy(), np.arange(len(own))
        for seat in range(own.shape[1] - 1, 0, -1):
            there = now.status[:, seat] != numbers.UNBORN
            np.add.at(total, (envs[there], now.parent[there, seat].astype(np.intp)), total[there, seat])
        return total


def _acts(batch: BatchDelegation, rng: np.random.Generator, calls: float = 0.5) -> NDArray[np.int64]:
    """Legal actions, calls preferred, and one in ten of any number."""
    actions, masks = batch.sample_actions(rng), batch.action_masks()
    can = masks[..., batch.rules.first_call :]
    if can.shape[-1]:
        chosen = batch.rules.first_call + (can * rng.random(can.shape)).argmax(-1)
        actions = np.where(can.any(-1) & (rng.random(actions.shape) < calls), chosen, actions)
    wild = rng.integers(-3, batch.num_actions + 3, actions.shape)
    return np.where(rng.random(actions.shape) < 0.1, wild, actions)


def play_symbolic(chunk: Chunk, size: int) -> None:
    width = min(size, 512)
    for part in range(size // width):
        rng = random.Random(chunk.seed(part))
        rules = draw_rules(rng)
        batch, noise = BatchDelegation(rules, width), np.random.default_rng(chunk.seed(part, "acts"))
        batch.reset(chunk.seed(part, "problems") % 2**63)
        again = BatchRecount(rules, batch, chunk.findings, f"symbolic:{chunk.number}/{part}")
        while not batch.done.all():
            acting = noise.random(batch.state.status.shape) < 0.7
            again.step(_acts(batch, noise), acting)
        born = (batch.state.status != numbers.UNBORN).sum(1)
        chunk.counts.update(
            episodes=width,
            with_clones=int((born > 1).sum()),
            nested=int((np.where(batch.state.status != numbers.UNBORN, batch.state.depth, 0).max(1) > 1).sum()),
            clones=int((born - 1).sum()),
            turns=int(again.turns.sum()),
            calls=int((batch.state.num_clones * (batch.state.status != numbers.UNBORN) > 0).sum()),
            tokens=int(batch.total_tokens().sum()),
        )


def play_twin(chunk: Chunk, size: int) -> None:
    for number in range(size):
        rng = random.Random(chunk.seed(number))
        rules = draw_rules(rng)
        batch, noise, steps = BatchDelegation(rules, 1), np.random.default_rng(chunk.seed(number, "acts")), []
        batch.reset(chunk.seed(number, "problems") % 2**63)
        start = batch.get_snapshot()
        while not batch.done.all():
            steps.append(_acts(batch, noise)[0])
            batch.step(steps[-1][None])
        record = episode_record(rules, start, steps, episode_id=f"twin:{chunk.number}/{number}")
        chunk.take(record, "symbolic", "words")
        numbers_say, words_say = int(batch.total_tokens()[0]), record.cost.total_tokens
        if numbers_say != words_say:
            chunk.findings.append(f"{record.episode_id}: {numbers_say} tokens in numbers, {words_say} in words")


# --- Chunks -----------------------------------------------------------------------------------------------------------

PLAY: dict[str, Callable[[Chunk, int], None]] = {
    "kernel": play_kernel,
    "scattered": play_scattered,
    "threads": play_threads,
    "pettingzoo": play_pettingzoo,
    "twin": play_twin,
    "symbolic": play_symbolic,
}


def play(kind: str, number: int, size: int | None = None) -> Chunk:
    """A chunk: the same episodes whenever it is played. An exception is a finding."""
    chunk, begun = Chunk(kind, number), time.process_time()
    try:
        PLAY[kind](chunk, SIZES[kind] if size is None else size)
    except Exception as error:
        chunk.findings.append(f"{kind}:{number}: {type(error).__name__}: {error}")
    chunk.cpu_s = time.process_time() - begun
    return chunk


def stored(store: Path) -> Iterator[Chunk]:
    """Chunks that have been played by these rules; half a last line is played again, and so is another format."""
    for line in store.read_text(encoding="utf-8").splitlines() if store.exists() else ():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if data.pop("format", 1) == FORMAT:
            yield Chunk(**data | {"counts": Counter(data["counts"])})


def summary(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """The evidence: small, and all that the page needs."""
    kinds: dict[str, Any] = {}
    for kind in PLAN:
        mine = [chunk for chunk in chunks if chunk.kind == kind]
        if not mine:
            continue
        total = sum((chunk.counts for chunk in mine), Counter[str]())
        names = ("episodes", "with_clones", "nested", "clones", "turns", "calls", "faults", "tokens")
        kinds[kind] = {name: total[name] for name in names} | {
            "share_with_clones": round(total["with_clones"] / max(1, total["episodes"]), 4),
            "findings": sum(len(chunk.findings) for chunk in mine),
            "cpu_s": round(sum(chunk.cpu_s for chunk in mine), 1),
            "chunks": _ranges(sorted(chunk.number for chunk in mine)),
        }
    findings = [text for chunk in chunks for text in chunk.findings]
    limits = Counter[str]()
    for chunk in chunks:
        limits.update({name: count for name, count in chunk.counts.items() if "=" in name})
    return {
        "episodes": sum(kind["episodes"] for kind in kinds.values()),
        "text_episodes": sum(kind["episodes"] for name, kind in kinds.items() if name in TEXT),
        "tokens": sum(kind["tokens"] for kind in kinds.values()),
        "findings": sorted(set(findings)),
        "cpu_s": round(sum(kind["cpu_s"] for kind in kinds.values()), 1),
        "limits": dict(sorted(limits.items())),
        "kinds": kinds,
    }


def _ranges(found: list[int]) -> str:
    """0-3,7"""
    runs: list[list[int]] = []
    for number in found:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", type=Path, default=Path("runs/soak.jsonl"), help="chunks that have been played")
    parser.add_argument("--out", type=Path, default=EVIDENCE)
    parser.add_argument("--share", type=float, default=1.0, help="of the million episodes; 0 only writes what there is")
    parser.add_argument("--kind", choices=list(PLAN), help="chunks of this kind alone")
    parser.add_argument("--only", help="one chunk again, as KIND:NUMBER")
    given = parser.parse_args()
    if given.only:
        kind, number = given.only.split("/")[0].split(":")
        chunk = play(kind, int(number))
        print(*chunk.findings, sep="\n")
        print(dict(chunk.counts), f"{chunk.cpu_s:.1f} CPU-s")
        return int(bool(chunk.findings))
    chunks = list(stored(given.store))
    there = {(chunk.kind, chunk.number) for chunk in chunks}
    todo = [(kind, i) for kind, count in PLAN.items() for i in range(math.ceil(count * given.share))]
    todo = [chunk for chunk in todo if chunk not in there and given.kind in (None, chunk[0])]
    random.Random(0).shuffle(todo)  # whatever is there when it is stopped holds of every kind
    given.store.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(given.workers) as pool, given.store.open("a", encoding="utf-8") as file:
        for done in as_completed([pool.submit(play, *chunk) for chunk in todo]):
            chunk = done.result()
            chunks.append(chunk)
            file.write(chunk.row())
            file.flush()
            for text in chunk.findings:
                print(f"FINDING {text}; repeat it with --only {chunk.kind}:{chunk.number}", flush=True)
    chunks.sort(key=lambda chunk: (chunk.kind, chunk.number))
    from reliability import written

    found = summary(chunks)
    written(given.out, found)
    print(json.dumps({name: found[name] for name in ("episodes", "text_episodes", "tokens", "cpu_s", "findings")}))
    return int(bool(found["findings"]))


if __name__ == "__main__":
    sys.exit(main())
