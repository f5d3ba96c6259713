"""Countdown: every task has a solution, and the expert finds one in every style."""

import numpy as np
import pytest

from selfcest_env.errors import ConfigError, TaskError
from selfcest_env.graders.countdown import CountdownMatch, verify_countdown
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import PromptFormat
from selfcest_env.rules import Rules
from selfcest_env.seeding import turn_seed
from selfcest_env.tasks import ExpertSource, Style
from selfcest_env.tasks.countdown import Countdown, Problem, solve
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Limits, Outcome, Task, Usage
from selfcest_env.views import observe

LIMITS = Limits(total_tokens=100_000, turn_tokens=4000)


def play(task: Task, source: ExpertSource, style: Style, protocol: PromptFormat, limits: Limits) -> Kernel:
    kernel = Kernel(task, Rules(limits, protocol, WordCounter()))
    while not kernel.done:
        agent = kernel.ready()[-1]
        seen = observe(kernel, agent)
        assert source.understands(seen)
        proposal = source.propose(seen, np.random.default_rng(turn_seed(7, agent, seen.turn)), style)
        text = protocol.render(proposal.action, proposal.thought)
        kernel.step(agent, protocol.parse(text), Usage(WordCounter().count_text(text)), text)
    return kernel


@pytest.mark.parametrize("protocol", [TerseProtocol(), HermesProtocol()], ids=["terse", "hermes"])
@pytest.mark.parametrize("phrasing", ["terse", "plain"])
@pytest.mark.parametrize("use_all", [True, False])
def test_the_expert_is_right_in_every_style(phrasing: str, use_all: bool, protocol: PromptFormat) -> None:
    source, rng = Countdown(2, 5, phrasing=phrasing, use_all=use_all), np.random.default_rng(3)
    shared = 0
    for _ in range(8):
        task = source.draw(rng)
        for limits in (LIMITS, Limits(total_tokens=None, max_depth=2, max_clones=99), Limits(max_depth=0)):
            for style in (Style.DELEGATE, Style.SOLVE):
                kernel = play(task, source, style, protocol, limits)
                assert CountdownMatch().grade(task, kernel.agents[ROOT].reply).correct, (task, style, kernel.log)
                assert (len(kernel.agents) > 1) == (style is Style.DELEGATE and limits.delegation)
                failed = [s.reply for s in kernel.agents.values() if s.reply in ("?", None)]
                shared += style is Style.DELEGATE and len(kernel.agents) > 2
                assert len(failed) < len(kernel.agents)
                outcomes = {facts.outcome for state in kernel.agents.values() for facts in state.turns}
                assert outcomes <= {Outcome.ANSWERED, Outcome.DELEGATED}
    assert shared > 5  # several first steps at once


def test_every_task_has_a_solution_by_whole_steps() -> None:
    source, rng = Countdown(3, 6, max_number=20, min_target=0, max_target=50), np.random.default_rng(0)
    for _ in range(60):
        task = source.draw(rng)
        problem = Problem(tuple(map(int, str(task.metadata["numbers"]).split())), int(task.metadata["target"]))
        assert 0 <= problem.target <= 50
        assert all(1 <= number <= 20 for number in problem.numbers)
        assert verify_countdown(task.answer, problem.numbers, problem.target) == ""
        assert CountdownMatch().grade(task, task.answer).correct


def test_solve_by_hand() -> None:
    found = solve(Problem((3, 4, 9), 24))
    assert found is not None
    assert verify_countdown(found.expression, (3, 4, 9), 24) == ""
    assert len(found.steps) == 2
    assert solve(Problem((2, 2), 5)) is None
    # 8 / (3 - 8 / 3) = 24 needs a fraction on the way: a right answer to the grader, none of the search's.
    assert solve(Problem((3, 3, 8, 8), 24)) is None
    assert solve(Problem((2, 50, 7), 9)) is None
    some = solve(Problem((2, 50, 7), 9, use_all=False))
    assert some is not None
    assert some.expression in ("(7+2)", "(2+7)")


def test_both_phrasings() -> None:
    problem = Problem((3, 4, 9), 24)
    assert problem.phrase("terse") == "24=3,4,9"
    assert problem.phrase("plain") == (
        "Use each of the numbers 3, 4, 9 exactly once, with + - * / and parentheses, to make 24. "
        "Answer with the expression alone."
    )


def test_what_the_expert_does_not_understand() -> None:
    source = Countdown()
    task = Task("t", "24=3,,9", "?", "countdown")
    seen = observe(Kernel(task, Rules(LIMITS, HermesProtocol(), WordCounter())), ROOT)
    assert not source.understands(seen)
    hopeless = Task("t", "1000=1,1,1", "?", "countdown")
    for style in (Style.DELEGATE, Style.SOLVE):
        assert play(hopeless, source, style, HermesProtocol(), LIMITS).agents[ROOT].reply == "?"


def test_options() -> None:
    with pytest.raises(ConfigError, match=r"Countdown\.max_numbers is 7; expected a whole number from 2 to 6"):
        Countdown(max_numbers=7)
    with pytest.raises(ConfigError, match=r"min_target is 50, above max_target = 40"):
        Countdown(min_target=50, max_target=40)
    with pytest.raises(TaskError, match="countdown found no 2 numbers up to max_number = 3"):
        Countdown(2, 2, max_number=3, min_target=5000, max_target=5000).draw(np.random.default_rng(0))
