"""Every expert, played through the real kernel in both protocols and phrasings, is always right."""

from collections.abc import Callable

import numpy as np
import pytest

from selfcest_env.kernel import Kernel
from selfcest_env.protocol import PromptFormat
from selfcest_env.rules import Rules
from selfcest_env.seeding import turn_seed
from selfcest_env.tasks import ExpertSource, Style, make_source
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Answer, Limits, Outcome, Read, Task, Usage
from selfcest_env.views import Observation, observe

WIDE = {"total_tokens": 200_000, "turn_tokens": 8000, "max_turns": 60, "max_clones": 200, "max_clones_per_call": 64}
HIDDEN = Limits(**WIDE, max_reads=64)
FULL = Limits(**WIDE, max_depth=0)
NESTED = Limits(**WIDE, max_depth=2, max_reads=64)

FAMILIES = {
    "arithmetic": ("arithmetic", {}),
    "short": ("arithmetic", {"min_operations": 1, "max_operations": 2, "times": 0, "min_digits": 1, "max_digits": 1}),
    "range_sum": ("range_sum", {"min_length": 1, "max_length": 40}),
    "range_sum_sized": ("range_sum", {"min_length": 1, "max_length": 40, "size_step": 5}),
    "sum": ("ledger_qa", {}),
    "chain": ("ledger_qa", {"mode": "chain", "max_hops": 6, "min_documents": 6}),
}


def make(family: str, phrasing: str = "terse") -> ExpertSource:
    name, options = FAMILIES[family]
    source = make_source(name, phrasing=phrasing, **options)
    assert isinstance(source, ExpertSource)
    return source


def play(
    task: Task,
    source: ExpertSource,
    style: Style,
    limits: Limits,
    protocol: PromptFormat | None = None,
    seed: int = 0,
    watch: Callable[[Observation, str], None] = lambda observation, text: None,
) -> Kernel:
    protocol = protocol or TerseProtocol()
    kernel = Kernel(task, Rules(limits, protocol, WordCounter()))
    while not kernel.done:
        agent = kernel.ready()[-1]
        seen = observe(kernel, agent)
        rng = np.random.default_rng(turn_seed(seed, agent, seen.turn))
        proposal = source.propose(seen, rng, style)
        text = protocol.render(proposal.action, proposal.thought)
        assert protocol.parse(text) == proposal.action, text
        watch(seen, text)
        kernel.step(agent, protocol.parse(text), Usage(WordCounter().count_text(text)), text)
        kernel.ledger.check()
    return kernel


@pytest.mark.parametrize("protocol", [TerseProtocol(), HermesProtocol()], ids=["terse", "hermes"])
@pytest.mark.parametrize("phrasing", ["terse", "plain"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_is_right_in_every_style(family: str, phrasing: str, protocol: PromptFormat) -> None:
    source, rng = make(family, phrasing), np.random.default_rng(1)
    for index in range(12):
        task = source.draw(rng)
        for limits in (HIDDEN, FULL, NESTED):
            for style in Style:
                kernel = play(task, source, style, limits, protocol, seed=index)
                assert kernel.agents[ROOT].reply == task.answer, (task, style, limits, kernel.log)
                turns = [facts for state in kernel.agents.values() for facts in state.turns]
                assert {facts.outcome for facts in turns} <= {Outcome.ANSWERED, Outcome.DELEGATED, Outcome.READ}
                # Delegating is what the style says, wherever it is possible; otherwise nobody is born.
                delegates = style is Style.DELEGATE and limits is not FULL
                assert (len(kernel.agents) > 1) == delegates


@pytest.mark.parametrize("family", ["arithmetic", "range_sum"])
def test_clones_delegate_too_when_they_may(family: str) -> None:
    source, rng = make(family), np.random.default_rng(2)
    depths = set()
    for index in range(60):
        task = source.draw(rng)
        kernel = play(task, source, Style.DELEGATE, NESTED, seed=index)
        assert kernel.agents[ROOT].reply == task.answer
        depths.add(max(agent.depth for agent in kernel.agents))
    assert depths == {1, 2}


def test_unlimited_depth_ends() -> None:
    limits = Limits(**WIDE, max_depth=None)
    for family in FAMILIES:
        source = make(family)
        task = source.draw(np.random.default_rng(3))
        assert play(task, source, Style.DELEGATE, limits).agents[ROOT].reply == task.answer


def test_a_refused_call_is_solved_alone() -> None:
    # One clone per call, and the range needs four: the call is refused as a whole, and the root goes on by itself.
    limits = Limits(max_clones_per_call=1, max_clones=16, turn_tokens=500, total_tokens=4000)
    source = make_source("range_sum", min_length=20, max_length=20, pieces=[5])
    assert isinstance(source, ExpertSource)
    task = source.draw(np.random.default_rng(0))
    kernel = play(task, source, Style.DELEGATE, limits)
    assert [facts.outcome for facts in kernel.agents[ROOT].turns] == [Outcome.REFUSED, Outcome.ANSWERED]
    assert kernel.agents[ROOT].reply == task.answer


def test_documents_out_of_reach_are_asked_for_or_given_up() -> None:
    # Hidden documents, no reading: the style SOLVE has only clones left.
    source = make("sum")
    task = source.draw(np.random.default_rng(0))
    no_reads = Limits(**WIDE)
    assert play(task, source, Style.SOLVE, no_reads).agents[ROOT].reply == task.answer
    poor = Limits(**{**WIDE, "max_clones": 1})
    assert play(task, source, Style.SOLVE, poor).agents[ROOT].reply == "?"


def test_the_expert_never_raises_on_foreign_text() -> None:
    texts = ["", "?", "+", ">", "((((", "1" * 5000, "3:[99]-[1]", "3:[0]-[4]", "?A>99", "9" * 64 + "*" + "9" * 64]
    for family in FAMILIES:
        source = make(family)
        for text in texts:
            kernel = play(Task("t", text, "0", "x", {"A": "not a ledger"}), source, Style.DELEGATE, HIDDEN)
            assert kernel.done
            assert isinstance(kernel.log[-1].action, Answer)


def test_a_read_brings_all_named_documents_at_once_and_a_chain_one_by_one() -> None:
    for family, reads in (("sum", 1), ("chain", None)):
        source = make(family)
        task = source.draw(np.random.default_rng(5))
        kernel = play(task, source, Style.READ, HIDDEN)
        found = [step.action for step in kernel.log if isinstance(step.action, Read)]
        assert len(found) == (reads or task.metadata["size"])
        assert sum(len(action.keys) for action in found) == task.metadata["size"]
