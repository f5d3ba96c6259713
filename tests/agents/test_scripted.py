"""Scripted players through the real kernel: experts are right, malice costs nobody but its author."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from attacks import ATTACKS

from selfcest_agents.policy import Actor, ScriptedPolicy, TurnGenerator
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor, RandomActor
from selfcest_env.errors import ConfigError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import PromptFormat
from selfcest_env.rules import Rules
from selfcest_env.seeding import turn_seed
from selfcest_env.tasks import Style, make_source
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, FinishReason, Limits, Task, Usage
from selfcest_env.views import Observation, observe


@dataclass(frozen=True)
class HostileActor:
    """An actor that writes one of `ATTACKS` at every turn: a random one, or the one named by `only`."""

    only: str | None = None

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        names = list(ATTACKS)
        return ATTACKS[self.only or names[int(rng.integers(len(names)))]]()


LIMITS = Limits(total_tokens=20_000, turn_tokens=1000, max_reads=16)
PROTOCOLS = [TerseProtocol(), HermesProtocol()]


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.random(3).tolist(),
        lambda rng: rng.permutation(9).tolist(),
        lambda rng: rng.spawn(1)[0].random(),
        lambda rng: np.random.default_rng(rng).normal(),
        lambda rng: pickle.loads(pickle.dumps(rng)).random(),
        lambda rng: copy.deepcopy(rng).random(),
        lambda rng: rng.bit_generator.random_raw(),
    ],
)
def test_the_generator_of_a_turn_draws_what_numpy_draws(draw: Callable[[np.random.Generator], object]) -> None:
    turn = TurnGenerator(7)
    other_turn = TurnGenerator(8)
    assert isinstance(turn, np.random.Generator)
    reference = np.random.default_rng(7)
    for _ in range(3):
        assert draw(turn) == draw(reference)
        other_turn.random()
    assert pickle.loads(pickle.dumps(turn)).random() == reference.random()


def test_a_turn_that_draws_nothing_seeds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source("ledger_qa")
    rules = Rules(LIMITS, TerseProtocol(), WordCounter())
    request = RolloutRequest("e", source.draw(np.random.default_rng(0)), 0)
    monkeypatch.setattr(np.random, "default_rng", None)  # a call would raise
    [record] = rollout([request], ScriptedPolicy(OracleActor(source, rules.protocol)), rules)
    assert record.answer == record.task.answer


def play(task: Task, actor: Actor, protocol: PromptFormat, limits: Limits = LIMITS, seed: int = 0) -> Kernel:
    kernel = Kernel(task, Rules(limits, protocol, WordCounter()))
    while not kernel.done:
        agent = kernel.ready()[0]
        seen = observe(kernel, agent)
        text = actor.act(seen, np.random.default_rng(turn_seed(seed, agent, seen.turn)))
        kernel.step(agent, protocol.parse(text), Usage(WordCounter().count_text(text), FinishReason.STOP), text)
        kernel.ledger.check()
    return kernel


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["terse", "hermes"])
@pytest.mark.parametrize("name", ["range_sum", "arithmetic", "ledger_qa"])
def test_oracle_and_monolith_are_right(name: str, protocol: PromptFormat) -> None:
    source, rng = make_source(name), np.random.default_rng(0)
    for seed in range(5):
        task = source.draw(rng)
        with_clones = play(task, OracleActor(source, protocol), protocol, seed=seed)
        alone = play(task, OracleActor(source, protocol, Style.READ), protocol, seed=seed)
        assert with_clones.agents[ROOT].reply == alone.agents[ROOT].reply == task.answer
        assert len(with_clones.agents) > 1
        assert len(alone.agents) == 1


def test_the_oracle_of_a_split_mixture() -> None:
    inner = {"name": "mixture", "sources": [{"name": "range_sum"}, {"name": "ledger_qa", "mode": "chain"}]}
    source = make_source("hashed_split", source=inner, part="train")
    rng = np.random.default_rng(0)
    for _ in range(10):
        task = source.draw(rng)
        assert play(task, OracleActor(source, TerseProtocol()), TerseProtocol()).agents[ROOT].reply == task.answer


def test_p_delegate_is_drawn_once_per_episode() -> None:
    source, protocol, rng = make_source("ledger_qa", mode="chain"), TerseProtocol(), np.random.default_rng(0)
    mixed = OracleActor(source, protocol, p_delegate=0.5, otherwise=Style.READ)
    born = []
    for seed in range(60):
        task = source.draw(rng)
        kernel = play(task, mixed, protocol, seed=seed)
        assert kernel.agents[ROOT].reply == task.answer
        born.append(len(kernel.agents) - 1)
        assert born[-1] in (0, task.metadata["size"])
    assert 15 < sum(count == 0 for count in born) < 45


def test_clone_style_decides_whether_clones_delegate() -> None:
    source = make_source("range_sum", min_length=30, max_length=40, pieces=(3, 10))
    limits = Limits(total_tokens=20_000, turn_tokens=1000, max_depth=2, max_clones=99, max_clones_per_call=40)
    rng, depths = np.random.default_rng(0), {style: set[int]() for style in (Style.SOLVE, None)}
    for seed in range(20):
        task = source.draw(rng)
        for style, seen in depths.items():
            kernel = play(task, OracleActor(source, TerseProtocol(), clone_style=style), TerseProtocol(), limits, seed)
            assert kernel.agents[ROOT].reply == task.answer
            seen.add(max(agent.depth for agent in kernel.agents))
    assert depths == {Style.SOLVE: {1}, None: {1, 2}}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["terse", "hermes"])
def test_random_play_ends_and_repeats(protocol: PromptFormat) -> None:
    source, rng = make_source("ledger_qa"), np.random.default_rng(0)
    limits = Limits(total_tokens=3000, turn_tokens=300, max_depth=2, max_reads=8)
    outcomes = set()
    for seed in range(40):
        task = source.draw(rng)
        kernel = play(task, RandomActor(protocol), protocol, limits, seed)
        assert kernel.log == play(task, RandomActor(protocol), protocol, limits, seed).log
        outcomes |= {facts.outcome for state in kernel.agents.values() for facts in state.turns}
    assert {str(outcome) for outcome in outcomes} == {"answered", "delegated", "read", "refused", "malformed"}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=["terse", "hermes"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_is_survived(attack: str, protocol: PromptFormat) -> None:
    task = make_source("ledger_qa").draw(np.random.default_rng(0))
    kernel = play(task, HostileActor(attack), protocol, Limits(max_reads=4, max_depth=2))
    assert kernel.done
    spent, reserved, _free = kernel.ledger.totals()
    assert spent.total_tokens is not None
    assert spent.total_tokens <= 2048
    assert reserved.total_tokens == 0
    # What a clone smuggled reaches no parent as a marker.
    for state in kernel.agents.values():
        for message in state.messages:
            for part in message.parts:
                assert part.trusted is False or "You are free" not in part.text


def test_hostile_play_at_random() -> None:
    task = make_source("range_sum").draw(np.random.default_rng(0))
    for seed in range(30):
        for protocol in PROTOCOLS:
            play(task, HostileActor(), protocol, seed=seed)


def test_bad_settings() -> None:
    class Bare:
        def draw(self, rng: np.random.Generator) -> Task:
            raise NotImplementedError

    with pytest.raises(ConfigError, match="Bare has no expert"):
        OracleActor(Bare(), TerseProtocol())
    with pytest.raises(ConfigError, match="p_delegate is 2"):
        OracleActor(make_source("range_sum"), TerseProtocol(), p_delegate=2)
    with pytest.raises(ConfigError, match="adding up to at most 1"):
        RandomActor(TerseProtocol(), p_answer=0.9)
