"""Computes from which length of a text on delegation costs less than a full reader or a serial memory.

Three strategies read a text of n tokens: a full reader in one context; a root with a clone for each part, which
concludes from their reports; and one agent that reads part after part with a memory. `TextLengths` has the tokens of
their prompts and turns. Every strategy is a list of batches in series, and costs follow from their shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from selfcest_agents.language import Language
from selfcest_env.errors import ConfigError
from selfcest_env.protocol import Brief, Reply
from selfcest_env.record import read_episodes
from selfcest_env.replay import replayed_episode
from selfcest_env.types import Boundary, CloneRequest, Delegate, Limits, Role
from selfcest_training.planning.engine_timing import Floats, count_terms

DELEGATE = "delegation"
FULL_READER = "full reader"
MEMORY = "serial memory"
STRATEGIES = (FULL_READER, DELEGATE, MEMORY)
LONGEST = 131_072  # tokens of the longest text that is looked at
DEFAULT_PART = 512  # tokens of a part
_FEW_PARTS = 2
_MANY_PARTS = 62
_QUESTION = "Where is the milk?"  # stands for the question in counts of prompts


class ForwardFlops(Protocol):
    """Operations of a forward pass, as `selfcest_eval.play.model_costs.DecoderShape` computes them."""

    def flops(self, start: int, stop: int) -> float: ...

    @property
    def output_flops(self) -> float: ...


@dataclass(frozen=True)
class LinearCount:
    """A number of tokens that grows by the same amount with each part of a text."""

    base: float
    per_part: float

    def at(self, parts: Floats) -> Floats:
        return self.base + self.per_part * parts


@dataclass(frozen=True)
class TextLengths:
    """Tokens of the prompts and turns of the three strategies.

    Attributes:
        source: origin of the numbers of generated tokens, for the reader of the plan.
        part: tokens of the text in a part, at most.
        prompt: tokens of the prompt of a reader or clone, without the text.
        root_prompt: tokens of the prompt of a root that delegates.
        call: generated tokens of its call.
        replies: tokens of the message with all reports, without the reports.
        report: generated tokens of a clone's report, and of a memory.
        answer: generated tokens of the answer.
    """

    source: str
    part: int
    prompt: int
    root_prompt: LinearCount
    call: LinearCount
    replies: LinearCount
    report: float
    answer: float


@dataclass(frozen=True)
class Batches:
    """Batches of requests that follow each other, for each length of a text.

    Attributes:
        repeats: [lengths] number of equal batches in series.
        requests: [lengths] requests of a batch for one text.
        cached: [lengths] tokens that the same agent has computed before.
        prompt: [lengths] further tokens of the prompt.
        generated: [lengths] generated tokens.
    """

    repeats: Floats
    requests: Floats
    cached: Floats
    prompt: Floats
    generated: Floats


def list_batches(strategy: str, lengths: TextLengths, text_tokens: Floats) -> list[Batches]:
    """Return the batches of a strategy on texts of these lengths, [lengths] in tokens. Parts are of equal size."""
    parts = np.ceil(text_tokens / lengths.part)
    part = text_tokens / parts
    one = np.ones_like(parts)
    zero = np.zeros_like(parts)
    report = lengths.report * one
    answer = lengths.answer * one
    if strategy == FULL_READER:
        return [Batches(one, one, zero, lengths.prompt + text_tokens, answer)]
    if strategy == DELEGATE:
        root_prompt = lengths.root_prompt.at(parts)
        call = lengths.call.at(parts)
        replies = lengths.replies.at(parts) + parts * report
        return [
            Batches(one, one, zero, root_prompt, call),
            Batches(one, parts, zero, lengths.prompt + part, report),
            Batches(one, one, root_prompt + call, replies, answer),
        ]
    assert strategy == MEMORY
    return [
        Batches(parts, one, zero, lengths.prompt + report + part, report),
        Batches(one, one, zero, lengths.prompt + report, answer),
    ]


def count_strategy_terms(
    strategy: str, lengths: TextLengths, text_tokens: Floats, at_once: int, max_batch_size: int
) -> Floats:
    """Count the engine's terms for a strategy, [lengths, 6].

    Every request computes its whole context. An engine that caches prefixes computes less, most of all for clones.

    Args:
        strategy: one of `STRATEGIES`.
        lengths: tokens of prompts and turns.
        text_tokens: [lengths] tokens of the texts.
        at_once: number of texts that are read at the same time.
        max_batch_size: largest number of requests that the engine decodes together.
    """
    terms = np.zeros((len(text_tokens), 6))
    for batches in list_batches(strategy, lengths, text_tokens):
        context = batches.cached + batches.prompt
        counted = count_terms(at_once * batches.requests, context, batches.generated, max_batch_size)
        terms += batches.repeats[:, None] * counted
    return terms


def count_tokens(strategy: str, lengths: TextLengths, text_tokens: Floats) -> Floats:
    """Count `total_tokens` of a strategy on one text, [lengths]: prompts and generations, each token once."""
    total = np.zeros_like(text_tokens)
    for batches in list_batches(strategy, lengths, text_tokens):
        total += batches.repeats * batches.requests * (batches.prompt + batches.generated)
    return total


def count_flops(strategy: str, lengths: TextLengths, text_tokens: Floats, shape: ForwardFlops) -> Floats:
    """Count the floating-point operations of a strategy on one text, [lengths]. Fractions of tokens are rounded."""
    total = np.zeros_like(text_tokens)
    for batches in list_batches(strategy, lengths, text_tokens):
        for index in range(len(text_tokens)):
            start = round(float(batches.cached[index]))
            stop = start + round(float(batches.prompt[index] + batches.generated[index]))
            request = shape.flops(start, stop) + shape.output_flops * float(batches.generated[index])
            total[index] += float(batches.repeats[index] * batches.requests[index]) * request
    return total


def make_text_lengths(part: int) -> Floats:
    """Return the lengths of texts at which costs are compared, in tokens: multiples of an eighth of a part."""
    step = max(1, part // 8)
    return np.arange(step, LONGEST + 1, step, dtype=float)


def find_crossing(text_tokens: Floats, cost: Floats, rival_cost: Floats) -> float:
    """Return the length from which on a cost is at most that of a rival, at all longer ones too; `inf` if none."""
    is_more = np.flatnonzero(cost > rival_cost)
    if not len(is_more):
        return float(text_tokens[0])
    last = int(is_more[-1])
    return float(text_tokens[last + 1]) if last + 1 < len(text_tokens) else np.inf


@dataclass(frozen=True)
class Crossing:
    """The length of a text from which on delegation costs less than a rival.

    Attributes:
        length: tokens; `inf` if there is none up to `LONGEST`.
        low, high: bounds of the interval from the repeats of the timings.
    """

    length: float
    low: float
    high: float


def find_crossing_seconds(
    rival: str, lengths: TextLengths, fits: tuple[Floats, Floats], at_once: int, max_batch_size: int, confidence: float
) -> Crossing:
    """Find the crossing in seconds, with a percentile interval.

    Args:
        rival: strategy with which delegation is compared.
        lengths: tokens of prompts and turns.
        fits: fitted seconds of each term [6], and those of bootstrap samples [samples, 6].
        at_once: number of texts that are read at the same time.
        max_batch_size: largest number of requests that the engine decodes together.
        confidence: confidence of the interval.
    """
    text_tokens = make_text_lengths(lengths.part)
    terms = count_strategy_terms(DELEGATE, lengths, text_tokens, at_once, max_batch_size)
    rival_terms = count_strategy_terms(rival, lengths, text_tokens, at_once, max_batch_size)
    fit, samples = fits
    crossings = [find_crossing(text_tokens, terms @ sample, rival_terms @ sample) for sample in samples]
    tail = (1 - confidence) / 2
    # The nearest sample, because the mean of two is undefined where one has no crossing.
    low, high = np.quantile(crossings, [tail, 1 - tail], method="nearest")
    return Crossing(find_crossing(text_tokens, terms @ fit, rival_terms @ fit), float(low), float(high))


# Tokens of prompts and turns


def find_text_lengths(language: Language, limits: Limits, part: int | None, episodes: Path | None) -> TextLengths:
    """Find the tokens of prompts and turns.

    Prompts, calls and messages are counted in the protocol of the model. Generated tokens are means of recorded
    episodes, or the most that the limits allow.

    Args:
        language: language of the model.
        limits: limits of the run.
        part: tokens of a part; `None`: those of the recorded episodes, or `DEFAULT_PART`.
        episodes: a run's episodes.jsonl.

    Raises:
        ConfigError: the limits do not bound the turns, or the file has no episode with clones.
    """
    codec = language.codec
    protocol = language.rules(Limits(total_tokens=1, answer_reserve=0)).protocol

    def count_root_prompt(parts: int) -> int:
        brief = Brief(Role.ROOT, _QUESTION, keys=_make_keys(parts), can_delegate=True)
        return codec.count(protocol.open(brief), Boundary.OPENING)

    def count_call(parts: int) -> int:
        requests = tuple(CloneRequest(_QUESTION, (key,)) for key in _make_keys(parts))
        return len(codec.encode_scripted(protocol.render(Delegate(requests))))

    def count_replies(parts: int) -> int:
        return codec.count((protocol.replies([Reply("")] * parts),), Boundary.AFTER_STOP)

    clone = Brief(Role.CLONE, _QUESTION, documents={"part 1": ""})
    prompt = codec.count(protocol.open(clone), Boundary.OPENING)
    turns = _bound_turns(limits) if episodes is None else _read_turns(episodes, prompt)
    return TextLengths(
        source=turns.source,
        part=part or turns.part,
        prompt=prompt,
        root_prompt=_fit_line(count_root_prompt),
        call=_fit_line(count_call),
        replies=_fit_line(count_replies),
        report=turns.report,
        answer=turns.answer,
    )


def _make_keys(parts: int) -> tuple[str, ...]:
    return tuple(f"part {number}" for number in range(1, parts + 1))


def _fit_line(count: Callable[[int], int]) -> LinearCount:
    """Return the line through the counts for a few parts and for many."""
    few = count(_FEW_PARTS)
    per_part = (count(_MANY_PARTS) - few) / (_MANY_PARTS - _FEW_PARTS)
    return LinearCount(few - _FEW_PARTS * per_part, per_part)


@dataclass(frozen=True)
class _Turns:
    source: str
    part: int
    report: float
    answer: float


def _bound_turns(limits: Limits) -> _Turns:
    """Return the most that the limits allow."""
    if limits.reply_tokens is None:
        raise ConfigError(
            "limits.reply_tokens is null, so the length of a report is not known; give --episodes, the episodes.jsonl "
            "of a similar run, or set limits.reply_tokens to its tokens"
        )
    return _Turns(
        f"a report of limits.reply_tokens = {limits.reply_tokens} and an answer of limits.answer_reserve = "
        f"{limits.answer_reserve} tokens; recorded turns (--episodes) may be shorter",
        DEFAULT_PART,
        limits.reply_tokens,
        max(1, limits.answer_reserve),
    )


def _read_turns(file: Path, prompt: int) -> _Turns:
    """Return the means of the recorded episodes with clones."""
    parts = []
    reports = []
    answers = []
    count = 0
    for episode in read_episodes(file) if file.is_file() else ():
        clones = [agent for agent in episode.agents if agent.depth == 1 and agent.turns]
        if replayed_episode(episode.episode_id) is not None or not clones:
            continue
        count += 1
        answers.append(episode.root.turns[-1].facts.generated_tokens)
        for clone in clones:
            parts.append(max(1, clone.turns[0].facts.prompt_tokens - prompt))
            reports.append(sum(turn.facts.generated_tokens for turn in clone.turns))
    if not count:
        raise ConfigError(
            f"--episodes {file} has no episode with clones; give the episodes.jsonl of a run that delegates, or leave "
            "it out"
        )
    report = float(np.mean(reports))
    answer = float(np.mean(answers))
    source = f"means of {count} episodes of {file}: a report of {report:.1f} tokens, an answer of {answer:.1f}"
    return _Turns(source, round(float(np.mean(parts))), report, answer)
