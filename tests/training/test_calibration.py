"""`selfcest plan --calibrate` on an engine whose clock follows a formula, against crossings worked out by hand."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfcest_agents.engine import Completion, FailedRequest, TokenRequest
from selfcest_agents.language import Language
from selfcest_agents.samplers import Sampler
from selfcest_cli.calibrate import (
    Calibration,
    CalibrationOptions,
    Play,
    compare_plays,
    find_ratio_crossing,
    measure,
    run_calibration,
)
from selfcest_cli.terminal import Terminal
from selfcest_env.errors import ConfigError, InfrastructureError
from selfcest_env.plugin import PlugIn
from selfcest_env.types import FinishReason
from selfcest_training.config_file import load_config
from selfcest_training.planning.crossing import (
    DELEGATE,
    FULL_READER,
    MEMORY,
    LinearCount,
    TextLengths,
    count_flops,
    count_strategy_terms,
    count_tokens,
    find_crossing,
    find_crossing_seconds,
    make_text_lengths,
)
from selfcest_training.planning.engine_timing import (
    AT_ONCE,
    MAX_ROUNDS,
    BatchShape,
    BatchTiming,
    EngineTimer,
    EngineTimings,
    count_terms,
    read_timings,
    write_timings,
)
from selfcest_training.run.experiment import default_config

# Seconds per batch, prompt token, pair, step, row of a step, and cached token of a step.
SECONDS = (0.02, 1e-4, 4e-8, 0.004, 0.0005, 1e-7)


@dataclass
class FormulaEngine:
    """An engine that computes nothing, and moves its own clock by the seconds of a formula.

    It counts one pair, step and cached token after the other, so that no formula of the product is used.
    """

    seconds: Sequence[float] = SECONDS
    stops_after: int = 10**9
    noise: float = 0.0
    fails: bool = False
    max_batch_size: int = 8
    now: float = 0.0
    num_batches: int = 0
    policy_version: int = 0
    waiting: list[TokenRequest] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return len(self.waiting)

    def clock(self) -> float:
        return self.now

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        self.waiting += requests

    def poll(self) -> list[Completion | FailedRequest]:
        requests = self.waiting
        self.waiting = []
        self.num_batches += 1
        per_batch, per_token, per_pair, per_step, per_row, per_cached = self.seconds
        spent = per_batch
        results: list[Completion | FailedRequest] = []
        for start in range(0, len(requests), self.max_batch_size):
            wave = requests[start : start + self.max_batch_size]
            lengths: list[int] = []
            for request in wave:
                for position in range(len(request.context_ids)):
                    spent += per_token + per_pair * (position + 1)
                # Requests of a wave stop one after the other.
                length = min(request.max_new_tokens, self.stops_after + len(lengths))
                lengths.append(length)
                for step in range(length):
                    spent += per_row + per_cached * (len(request.context_ids) + step + 1)
                ids = (1,) * length
                results.append(Completion(request.key, ids, (0.0,) * length, FinishReason.LENGTH, 0))
            spent += per_step * max(lengths)
        self.now += spent * (1 + self.noise * np.random.default_rng(self.num_batches).normal())
        if self.fails:
            return [FailedRequest(request.key, InfrastructureError("gone")) for request in requests]
        return results

    def cancel(self, keys: Iterable[str]) -> None: ...

    def load_weights(self, weights: object, policy_version: int) -> None: ...


ENGINE = FormulaEngine()


@dataclass(frozen=True)
class FormulaSampler:
    """The sampler of `ENGINE`, as a plug-in."""

    max_batch_size: int = 8
    shared: bool = False
    max_positions: int | None = 2048

    def start(self, language: Language, model: object) -> Sampler:
        return Sampler(ENGINE, shared=False, exact=True)


def make_timer(engine: FormulaEngine, max_positions: int = 2048) -> EngineTimer:
    return EngineTimer(
        engine,
        vocab_size=50,
        max_positions=max_positions,
        max_batch_size=engine.max_batch_size,
        clock=engine.clock,
    )


def time_engine(engine: FormulaEngine, budget_seconds: float = 1000.0) -> EngineTimings:
    return make_timer(engine).run(budget_seconds, EngineTimings({}, engine.max_batch_size, ()), lambda _: None)


@pytest.mark.parametrize("stops_after", [10**9, 5])
def test_a_fit_finds_the_seconds_of_the_engine(stops_after: int) -> None:
    """Also where sequences end early, and where more requests come than the engine decodes together."""
    timings = time_engine(FormulaEngine(stops_after=stops_after))
    assert timings.num_rounds == MAX_ROUNDS
    assert {timing.shape.requests for timing in timings.timings} == {1, AT_ONCE}
    assert timings.fit() == pytest.approx(SECONDS, rel=1e-4)
    assert timings.relative_errors(timings.fit()).max() < 1e-6


def test_no_term_gets_negative_seconds() -> None:
    """Where attention costs nothing, noise must not give it a negative price."""
    for noise in (0.02, 0.05):
        timings = time_engine(FormulaEngine(seconds=(0.02, 1e-4, 0, 0.004, 0, 0), noise=noise))
        samples = timings.resample(20)
        assert (timings.fit() >= 0).all()
        assert (samples >= 0).all()
        assert samples.std(axis=0)[1] > 0


def test_the_warm_up_decides_the_lengths_and_is_not_fitted() -> None:
    short = time_engine(FormulaEngine(), budget_seconds=20.0)
    long = time_engine(FormulaEngine(), budget_seconds=80.0)
    shapes = {timing.shape for timing in short.timings}
    assert shapes < {timing.shape for timing in long.timings}
    for timings, budget in ((short, 20.0), (long, 80.0)):
        assert timings.seconds <= budget
        assert timings.num_rounds >= 3
        # Every shape is in every round.
        assert len(timings.timings) == len({timing.shape for timing in timings.timings}) * (timings.num_rounds + 1)
    # A first batch of an hour changes no fit.
    slow = replace(long.timings[0], seconds=3600.0)
    slowed = EngineTimings({}, 8, (slow, *long.timings[1:]))
    assert slowed.fit() == pytest.approx(long.fit())


def test_no_two_batches_share_a_context() -> None:
    engine = FormulaEngine()
    contexts: list[tuple[int, ...]] = []
    submit = engine.submit

    def note(requests: Sequence[TokenRequest]) -> None:
        contexts.extend(request.context_ids[:16] for request in requests)
        submit(requests)

    engine.submit = note  # type: ignore[method-assign]
    time_engine(engine, budget_seconds=20.0)
    assert len(set(contexts)) == len(contexts)


# Crossings by hand

PLAIN = TextLengths(
    source="",
    part=100,
    prompt=0,
    root_prompt=LinearCount(0, 0),
    call=LinearCount(0, 0),
    replies=LinearCount(0, 0),
    report=0,
    answer=0,
)


def crossing_of(lengths: TextLengths, seconds: Sequence[float], rival: str = FULL_READER, at_once: int = 1) -> float:
    fit = np.array(seconds)
    return find_crossing_seconds(rival, lengths, (fit, fit[None]), at_once, 8, 0.95).length


def test_a_crossing_of_attention_against_two_more_batches() -> None:
    """Delegation has three batches and the full reader one.

    With 0.0299 s a batch and 2e-6 s a pair, m parts of n / m tokens cost 2 x 0.0299 s more. They save 2e-6 x (n (n + 1)
    - n (n / m + 1)) / 2 = 1e-6 x n^2 (1 - 1 / m) s. With three parts that is 0.0598 s at n = 299.5. Lengths are
    multiples of 12.
    """
    assert crossing_of(PLAIN, (0.0299, 0, 2e-6, 0, 0, 0)) == 300
    # Sixteen texts at once save sixteen times as much with as many batches, so two parts suffice. Texts of up to 100
    # tokens have one part.
    assert crossing_of(PLAIN, (0.0299, 0, 2e-6, 0, 0, 0), at_once=AT_ONCE) == 108
    # Without attention delegation never costs less, and without a constant it always does.
    assert crossing_of(PLAIN, (0.03, 1e-3, 0, 0, 0, 0)) == inf
    assert crossing_of(PLAIN, (0, 1e-3, 1e-6, 0, 0, 0)) == 12


def test_a_crossing_with_prompts_calls_and_reports() -> None:
    """Every part adds a prompt of 30 tokens, a report of 5 and a line of 4 in the root's last message.

    With 1e-3 s a token and 1e-6 s a pair, a text of n = 100 m tokens takes, in milliseconds, 0.001 times as many pairs:
    full reader: 30 + n tokens and the pairs of as many;
    delegation: a call of 40 + 2 m + 7, clones of 30 + 100, and a root that ends with 40 + 2 m + 7 + 10 + 9 m.
    """
    lengths = replace(
        PLAIN,
        prompt=30,
        root_prompt=LinearCount(40, 2),
        call=LinearCount(7, 0),
        replies=LinearCount(10, 4),
        report=5,
        answer=3,
    )
    seconds = (0.0, 1e-3, 1e-6, 0.0, 0.0, 0.0)

    def pairs(tokens: float) -> float:
        return tokens * (tokens + 1) / 2

    expected = None
    for parts in range(1, 60):
        text = 100 * parts
        full = (30 + text) + pairs(30 + text) / 1000
        first = 40 + 2 * parts
        last = first + 7 + 10 + 4 * parts + 5 * parts
        delegation = first + parts * 130 + last + (pairs(first) + parts * pairs(130) + pairs(last)) / 1000
        if delegation <= full and expected is None:
            expected = text
    assert expected == 1200
    # All lengths above 1,100 tokens have twelve parts.
    assert 1100 < crossing_of(lengths, seconds) <= expected
    text_tokens = np.array([400.0, 500.0])
    terms = count_strategy_terms(DELEGATE, lengths, text_tokens, 1, 8)
    # Tokens of the contexts: 48 + 4 x 130 + 48 + 7 + 10 + 36, and with five parts 50 + 5 x 130 + 50 + 7 + 10 + 45.
    assert terms[:, 1].tolist() == [669, 812]
    # Steps: 7 + 5 + 3. Rows of steps: 7 + 5 m + 3.
    assert terms[:, 3].tolist() == [15, 15]
    assert terms[:, 4].tolist() == [30, 35]
    # The root's own context is counted once: its last prompt is 10 + 9 m.
    assert count_tokens(DELEGATE, lengths, text_tokens).tolist() == [
        48 + 7 + 4 * 135 + 46 + 3,
        50 + 7 + 5 * 135 + 55 + 3,
    ]
    assert count_tokens(FULL_READER, lengths, text_tokens).tolist() == [433, 533]
    # A memory of 5 tokens is in every prompt: m (30 + 5 + 100 + 5), and 30 + 5 + 3 for the answer.
    assert count_tokens(MEMORY, lengths, text_tokens).tolist() == [4 * 140 + 38, 5 * 140 + 38]
    memory = count_strategy_terms(MEMORY, lengths, text_tokens, 1, 8)
    assert memory[:, 3].tolist() == [4 * 5 + 3, 5 * 5 + 3]


def test_operations_are_those_of_every_context() -> None:
    class Linear:
        """One operation for a token, and one for a pair."""

        output_flops = 100.0

        def flops(self, start: int, stop: int) -> float:
            return float(stop - start + sum(range(start + 1, stop + 1)))

    lengths = replace(PLAIN, prompt=3, root_prompt=LinearCount(4, 0), replies=LinearCount(2, 0), report=1, answer=1)
    lengths = replace(lengths, call=LinearCount(2, 0), part=10)

    def whole(tokens: int) -> int:
        return tokens + sum(range(1, tokens + 1))

    # Root: 4 and 2 tokens, then 2 and 2 reports of 1, then 1, in one context of 11. Clones: 3 + 10 and 1.
    expected = whole(11) + 2 * whole(14) + 100 * (2 + 2 * 1 + 1)
    assert count_flops(DELEGATE, lengths, np.array([20.0]), Linear()).tolist() == [expected]
    assert count_flops(FULL_READER, lengths, np.array([20.0]), Linear()).tolist() == [whole(24) + 100]


def test_more_requests_than_the_engine_decodes_together_take_several_waves() -> None:
    assert count_terms(16, 10, 3, 8).tolist() == [1, 160, 16 * 55, 2 * 3, 48, 16 * (11 + 12 + 13)]
    assert count_terms(16, 10, 3, 256)[3] == 3


def test_a_crossing_holds_for_all_longer_texts() -> None:
    lengths = np.array([1.0, 2.0, 3.0, 4.0])
    assert find_crossing(lengths, np.array([1, 3, 1, 1]), np.array([2, 2, 2, 2])) == 3
    assert find_crossing(lengths, np.array([1, 1, 1, 3]), np.array([2, 2, 2, 2])) == inf
    assert find_crossing(lengths, np.array([2, 2, 2, 2]), np.array([2, 2, 2, 2])) == 1


def test_an_interval_comes_from_the_repeats() -> None:
    exact = time_engine(FormulaEngine())
    noisy = time_engine(FormulaEngine(noise=0.1))
    lengths = replace(PLAIN, part=256, prompt=50, report=20, answer=20)
    true = crossing_of(lengths, SECONDS)
    widths = []
    for timings in (exact, noisy):
        found = find_crossing_seconds(FULL_READER, lengths, (timings.fit(), timings.resample(100)), 1, 8, 0.95)
        assert found.low <= found.length <= found.high
        assert found.low <= true <= found.high
        widths.append(found.high - found.low)
    assert widths[0] == 0 < widths[1]
    assert make_text_lengths(256)[0] == 32


# The file, and the command


def make_options(tmp_path: Path, **changes: Any) -> CalibrationOptions:
    options = CalibrationOptions(tmp_path / "timings.jsonl", 1.0, 256, None, False)
    return replace(options, **changes)


def calibrate(tmp_path: Path, engine: FormulaEngine, **changes: Any) -> str:
    global ENGINE
    ENGINE = engine
    config = load_config(default_config(), ["limits.reply_tokens=20", "limits.answer_reserve=20"])
    config = replace(config, sampler=PlugIn(f"{__name__}:FormulaSampler", {"max_batch_size": engine.max_batch_size}))
    text = io.StringIO()
    run_calibration(config, make_options(tmp_path, **changes), Terminal(file=text), clock=engine.clock)
    return text.getvalue()


@pytest.mark.slow
def test_the_command_predicts_what_is_then_measured(tmp_path: Path) -> None:
    engine = FormulaEngine(seconds=(0.005, 1e-4, 4e-7, 0.001, 0.0001, 1e-8))
    text = calibrate(tmp_path, engine, minutes=5.0, measure=True)
    assert "calibration: " in text
    interval = r"[\d,]+ \([\d,]+ to [\d,]+\)"
    note = "; extrapolated beyond the timed prompts"  # of 1,024 tokens; the second crossing is below
    one_request = rf"seconds, one request: {interval}{note}"
    assert re.search(rf"against full reader\n +{one_request}\n +seconds, 16 requests at once: {interval}\n", text)
    assert re.search(r"the root that delegates fits up to a text of [\d,]+ tokens", text)
    assert "against serial memory" in text
    assert "tokens: none up to 131,072" in text
    # The model of the default config has an attention window, so its operations have another formula.
    assert "FLOPs are left out: model is tiny, which has an attention window of 160" in text
    ratios = [float(ratio) for ratio in re.findall(r"= ([\d.]+)\n", text)]
    assert len(ratios) == 8
    assert ratios == pytest.approx([1.0] * 8, abs=0.05)
    predicted, measured = re.findall(r"one request: crossing predicted at ([\d,]+), measured at ([\d,]+)", text)[0]
    assert int(predicted.replace(",", "")) == pytest.approx(int(measured.replace(",", "")), rel=0.1)


def test_a_play_is_repeated_while_there_is_time_for_it(tmp_path: Path) -> None:
    """One request of 256 tokens takes 0.0556 seconds and one of 4,096 tokens 3.3 in this formula."""
    seconds = (0.0, 1e-4, 4e-7, 0.001, 0.0001, 0.0)
    engine = FormulaEngine(seconds=seconds)
    lengths = TextLengths("by hand", 10_000, 10, LinearCount(1, 0), LinearCount(1, 0), LinearCount(1, 0), 1, 1)
    timer = EngineTimer(engine, vocab_size=10, max_positions=5000, max_batch_size=8, clock=engine.clock)
    rounds: list[str] = []
    time_batch = timer.time_batch

    def noted(shape: BatchShape, round_number: int) -> BatchTiming:
        rounds.append(f"{shape} {round_number}")
        return time_batch(shape, round_number)

    timer.time_batch = noted  # type: ignore[method-assign]
    timings = EngineTimings({}, 8, tuple(timer.time_batch(BatchShape(1, n, 1), 1) for n in (64, 256, 1024)))
    calibration = Calibration(timer, timings, lengths, "none")
    calibration.__dict__["fit"] = np.array(seconds)
    texts = {1: (246, 4086, 6000)}
    short, long, too_long = measure(calibration, (FULL_READER,), texts, longest_seconds=5, repeat_seconds=3.5)
    assert (len(short.seconds), len(long.seconds), too_long.seconds) == (3, 1, ())
    assert short.measured == pytest.approx(256e-4 + 4e-7 * 256 * 257 / 2 + 0.0011)
    assert too_long.not_measured == "a context is longer than the model's window"
    assert len(set(rounds)) == len(rounds) == 3 + 4 + 1, "no round is timed twice"
    _, slow, _ = measure(calibration, (FULL_READER,), texts, longest_seconds=1, repeat_seconds=3.5)
    assert slow.not_measured == "it would take more than 1 s"
    assert slow.measured is None


def test_a_crossing_holds_at_all_longer_texts() -> None:
    # From 2 to 1/2 between 1,000 and 2,000 tokens; 1 is in the middle of powers.
    assert find_ratio_crossing([(1000, 2.0), (2000, 0.5), (4000, 0.4)]) == pytest.approx(1000 * 2**0.5)
    assert find_ratio_crossing([(500, 2.0), (1000, 0.5), (2000, 2.0), (4000, 0.5)]) == pytest.approx(2000 * 2**0.5)
    assert find_ratio_crossing([(1000, 2.0), (2000, 0.5), (4000, 1.1)]) is None, "the longest text takes longer"
    assert find_ratio_crossing([(1000, 0.5), (2000, 0.4)]) is None, "the shortest text takes less time already"
    assert find_ratio_crossing([]) is None
    # The strategies, and lengths where one was not measured.
    plays = [Play(FULL_READER, 1, n, 1.0, (2.0,)) for n in (1, 2, 3)] + [
        Play(DELEGATE, 1, n, 3.0, (1.0,)) for n in (1, 2)
    ]
    assert compare_plays(plays, is_predicted=True) == [(1, 3.0), (2, 3.0)]
    assert compare_plays(plays, is_predicted=False) == [(1, 0.5), (2, 0.5)]


@pytest.mark.slow
def test_an_interrupted_calibration_continues_with_its_file(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    calibrate(whole, FormulaEngine())
    expected = (whole / "timings.jsonl").read_text().splitlines()
    for stop in (3, 40):
        folder = tmp_path / str(stop)
        folder.mkdir()

        class Interrupted(FormulaEngine):
            def poll(self) -> list[Completion | FailedRequest]:
                if self.num_batches == stop + 1:  # noqa: B023, one batch warms up
                    raise KeyboardInterrupt
                return super().poll()

        with pytest.raises(KeyboardInterrupt):
            calibrate(folder, Interrupted())
        assert (folder / "timings.jsonl").read_text().splitlines() == expected[: stop + 1]
        calibrate(folder, FormulaEngine())
        continued = read_timings(folder / "timings.jsonl", *_subject_of(folder / "timings.jsonl"))
        complete = read_timings(whole / "timings.jsonl", *_subject_of(whole / "timings.jsonl"))
        assert [timing.shape for timing in continued.timings] == [timing.shape for timing in complete.timings]
    # A complete file is only read.
    engine = FormulaEngine()
    calibrate(whole, engine)
    assert engine.num_batches == 0


def _subject_of(file: Path) -> tuple[dict[str, Any], int]:
    import json

    header = json.loads(file.read_text().splitlines()[0])
    return {key: value for key, value in header.items() if key != "max_batch_size"}, header["max_batch_size"]


def test_timings_of_something_else_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "timings.jsonl"
    timing = BatchTiming(BatchShape(1, 64, 1), 0, (1,), 0.5)
    write_timings(file, EngineTimings({"model": "a"}, 8, (timing,)))
    assert read_timings(file, {"model": "a"}, 8).timings == (timing,)
    with pytest.raises(ConfigError, match=r"timings with model = 'a', and here it is 'b'; give another file name"):
        read_timings(file, {"model": "b"}, 8)
    for text in ("{}\nno", "[1]\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="expected a file that --calibrate wrote"):
            read_timings(file, {}, 8)


def test_what_cannot_be_timed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"failed at r11/256/1/0: gone; expected an engine that answers every"):
        calibrate(tmp_path, FormulaEngine(fails=True))
    with pytest.raises(ConfigError, match=r"in 0 seconds; expected an engine that computes tokens"):
        calibrate(tmp_path, FormulaEngine(seconds=(0.0,) * 6))
    with pytest.raises(ConfigError, match=r"suffice for 1 lengths of one request and 0 of 16; expected at least 3"):
        calibrate(tmp_path, FormulaEngine(), minutes=0.001)
    # A study may have a server or a player of texts, which have no engine.
    study = Path(__file__).parents[2] / "training/configs/novels_frontier.yaml"
    with pytest.raises(ConfigError, match="found the config of a study, with strategies; expected the config of a run"):
        load_config(study)
    with pytest.raises(ConfigError, match=r"--minutes is 0; expected minutes of timing"):
        make_options(tmp_path, minutes=0.0)
    with pytest.raises(ConfigError, match=r"--part-tokens is 2; expected at least 8"):
        make_options(tmp_path, part_tokens=2)


@pytest.mark.slow
def test_a_real_engine_is_timed(tmp_path: Path) -> None:
    """A batch takes one second here. Sequences of the embedded model may stop early."""
    seconds = iter(range(10**6))
    config = load_config(default_config(), ["model.options={attention_window: null, attention_sinks: 0}"])
    text = io.StringIO()
    run_calibration(
        config, make_options(tmp_path, minutes=1.2), Terminal(file=text), clock=lambda: float(next(seconds))
    )
    timings = read_timings(tmp_path / "timings.jsonl", *_subject_of(tmp_path / "timings.jsonl"))
    assert timings.fit() == pytest.approx([1, 0, 0, 0, 0, 0], abs=1e-3)
    assert min(len(timing.generated) for timing in timings.timings) == 1
    # The constant of three batches is never saved, and operations are those of a decoder that sees its whole context.
    assert "seconds, one request: none up to 131,072" in text.getvalue()
    assert re.search(r"FLOPs: [\d,]+\n", text.getvalue())
