"""What credit sees of the policy, and the schemes that learn from it: `critic` and `gae`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records import TASK, group, three_agents
from test_job import config, crash_and_resume, play, rows, weights
from test_lab import solved
from test_tree_rows import SHAPE, random_episode, random_ids, tiny

from selfcest_env.errors import ConfigError, CreditError, PlugInError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup
from selfcest_env.types import ROOT, TurnKey
from selfcest_lab.estimate import learn, sample_groups
from selfcest_lab.expectation import expected_gradient
from selfcest_methods.critic import Critic
from selfcest_methods.gae import Gae
from selfcest_methods.value_head import ValueHead
from selfcest_training.credit import (
    Credit,
    CreditAssigner,
    Gated,
    Internal,
    Internals,
    PerRole,
    Rloo,
    TurnInternals,
    assign,
    assign_step,
    fit,
    make_assigner,
)
from selfcest_training.credit.testing import ConformanceError, check_assigner
from selfcest_training.learner.internals import compute_internals
from selfcest_training.learner.options import OptimizerConfig, Rows
from selfcest_training.learner.update import Learner

RL = "variants__delegating__rl"
CLONES = (ROOT.child(0), ROOT.child(1))


# What is seen


def some_groups() -> list[EpisodeGroup]:
    rng = random.Random(3)
    prompts = [random_ids(rng, 20, 30) for _ in range(2)]
    return [
        EpisodeGroup(TASK, tuple(random_episode(rng, f"g{g}e{k}", prompt) for k in range(3)))
        for g, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("layout", [Rows.BUCKETED, Rows.TREE], ids=str)
def test_states_and_entropies_are_those_of_every_context_by_itself(layout: Rows) -> None:
    model, groups = tiny("sdpa"), some_groups()
    learner = Learner(model, OptimizerConfig(), pad_id=0, micro_batch_tokens=200, rows=layout)
    found, computed = compute_internals(learner, groups, frozenset(Internal))
    turns = {key for one in groups for episode in one.episodes for key, _ in episode.turns()}
    assert found.keys() == turns
    contexts = 0
    for episode in (episode for one in groups for episode in one.episodes):
        for agent in episode.agents:
            ids = torch.tensor([agent.context_ids])
            contexts += ids.shape[1]
            with torch.no_grad():
                states = model.get_decoder()(input_ids=ids).last_hidden_state[0]
                logits = model(input_ids=ids).logits[0].double()
            position = 0
            for index, turn in enumerate(agent.turns):
                here = found[TurnKey(episode.episode_id, agent.agent_id, index)]
                start = position + len(turn.generation.prompt_ids)
                position = start + len(turn.generation.token_ids)
                size = float(states.abs().max())
                assert here.before == pytest.approx(states[start - 1].numpy(), abs=1e-5 * size)
                assert here.after == pytest.approx(states[position - 1].numpy(), abs=1e-5 * size)
                tempered = torch.log_softmax(logits[start - 1 : position - 1] / turn.generation.temperature, -1)
                chosen = tempered.gather(1, ids[0, start:position, None])[:, 0]
                assert here.logprobs == pytest.approx(chosen.numpy(), abs=1e-4)
                assert here.entropies == pytest.approx(-(tempered.exp() * tempered).sum(-1).numpy(), abs=1e-4)
    if layout is Rows.BUCKETED:
        pads = sum(len(episode.agents) for one in groups for episode in one.episodes)
        assert computed == 2 * contexts + pads, "two passes, and a pad behind each context in one of them"
    else:
        assert computed < 2 * contexts, "what is shared is computed once"


def test_what_is_not_asked_for_is_not_computed() -> None:
    learner = Learner(tiny("sdpa"), OptimizerConfig(), pad_id=0, micro_batch_tokens=200)
    found, computed = compute_internals(learner, some_groups(), {Internal.HIDDEN})
    assert {(len(each.before), len(each.entropies)) for each in found.values()} == {(SHAPE.hidden_size, 0)}
    assert computed > 0
    nothing, none = compute_internals(learner, some_groups(), ())
    assert none == 0
    assert {len(each.before) + len(each.logprobs) for each in nothing.values()} == {0}


# The value head


def test_a_value_head_is_a_ridge_regression_on_standardised_features() -> None:
    rng = np.random.default_rng(0)
    x, y = 30 * rng.standard_normal((50, 4)) + 7, rng.standard_normal(50) + 0.8
    head = ValueHead(decay=1.0, ridge=0.1)
    head.fit(x[:30], y[:30])
    head.fit(x[30:], y[30:])
    z = (x - x.mean(0)) / x.std(0)
    rows, values = np.vstack([z, np.sqrt(0.1 * 50) * np.eye(4)]), np.append(y - y.mean(), np.zeros(4))
    weights = np.linalg.lstsq(rows, values, rcond=None)[0]
    assert head(x) == pytest.approx(y.mean() + z @ weights)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_the_mean_return_is_not_shrunk_whatever_the_features(scale: float) -> None:
    head, x = ValueHead(decay=1.0, ridge=0.1), scale * np.random.default_rng(0).standard_normal((200, 64))
    head.fit(x, np.full(200, 0.8))
    assert head(x) == pytest.approx(np.full(200, 0.8))
    constant = ValueHead(decay=1.0, ridge=0.1)
    constant.fit(np.full((5, 3), scale), np.arange(5.0))
    assert constant(np.full((1, 3), scale)) == pytest.approx([2.0])


def test_what_is_older_counts_less() -> None:
    head = ValueHead(decay=0.5, ridge=1e-9)
    for value in (8.0, 2.0, 5.0):
        head.fit(np.ones((1, 1)), np.array([value]))
    assert head(np.ones((1, 1)))[0] == pytest.approx((8 / 4 + 2 / 2 + 5) / (1 / 4 + 1 / 2 + 1))
    head.fit(np.zeros((0, 1)), np.zeros(0))
    assert head(np.ones((1, 1)))[0] == pytest.approx(32 / 7), "a step without a clone forgets nothing"


def test_a_value_head_of_another_model_is_refused() -> None:
    head = ValueHead(decay=1.0, ridge=0.1)
    assert not head.is_fitted
    assert head(np.ones((2, 3))).tolist() == [0.0, 0.0]
    untouched = head.state_dict()
    head.fit(np.eye(3), np.arange(3.0))
    other = ValueHead(decay=1.0, ridge=0.1)
    other.load_state_dict(head.state_dict())
    assert other(np.eye(3)) == pytest.approx(head(np.eye(3)), abs=0)
    with pytest.raises(CreditError, match="fitted on 3 features and is given 4"):
        other(np.ones((1, 4)))
    other.load_state_dict(untouched)
    assert not other.is_fitted


@pytest.mark.parametrize("scheme", [Critic(), Gae()], ids=lambda s: s.name)
def test_a_step_with_nothing_in_it_teaches_nothing(scheme: Critic | Gae) -> None:
    scheme.fit([], {})
    assert assign_step(scheme, [], [], {}) == []
    internals = seen(PAIR, range(4), range(4))
    assert assign_step(scheme, [PAIR], [{}], internals)[0].advantage == Rloo().assign(PAIR, {}).advantage


# Credit, worked out by hand


def seen(one: EpisodeGroup, before: Sequence[float], after: Sequence[float]) -> Internals:
    """A state of one number: of the root's turns and of both clones' in the order of `turns`, in every episode."""
    empty = np.zeros(0, dtype=np.float32)
    found = {}
    for episode in one.episodes:
        for (key, _), first, last in zip(episode.turns(), before, after, strict=True):
            states = (np.array([value], dtype=np.float32) for value in (first, last))
            found[key] = TurnInternals(*states, empty, empty)
    return found


PAIR = group(three_agents("e0", 1.0), three_agents("e1", 0.0))
SPREAD = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # own state and that of the parent
ORDER = [(key.agent_id, key.turn) for key, _ in PAIR.episodes[0].turns()]


def test_before_anything_is_learned_it_is_rloo() -> None:
    internals = seen(PAIR, range(4), range(4))
    for scheme in (Critic(), Gae()):
        assert assign_step(scheme, [PAIR], [{}], internals)[0].advantage == Rloo().assign(PAIR, {}).advantage


def test_critic_by_hand() -> None:
    """V and Q are told apart by states that stand for the values themselves: Q = 3 after, V = 2 before."""
    assert [(ROOT, 0), (ROOT, 1), (CLONES[0], 0), (CLONES[1], 0)] == ORDER
    critic = Critic(ridge=1e-9)
    critic.state.value.fit(SPREAD, 2 * SPREAD[:, 0])
    critic.state.action_value.fit(SPREAD, 3 * SPREAD[:, 0])
    internals = seen(PAIR, [7, 7, 0.5, 0.25], [7, 7, 1.0, 0.0])
    (credit,) = assign_step(critic, [PAIR], [{}], internals)
    for episode, root in (("e0", 1.0), ("e1", -1.0)):
        found = [credit.advantage[TurnKey(episode, *place)] for place in ORDER]
        assert found == pytest.approx([root, root, 3 * 1.0 - 2 * 0.5, 0 - 2 * 0.25], abs=1e-4)


def test_the_critic_reads_what_the_parent_saw_at_the_call() -> None:
    critic = Critic(ridge=1e-9)
    critic.state.value.fit(SPREAD, 2 * SPREAD[:, 1])
    critic.state.action_value.fit(SPREAD, 5 * SPREAD[:, 1])
    (credit,) = assign_step(critic, [PAIR], [{}], seen(PAIR, [9, 9, 9, 9], [0.5, 9, 9, 9]))
    assert credit.advantage[TurnKey("e0", CLONES[0], 0)] == pytest.approx((5 - 2) * 0.5, abs=1e-3)


def test_gae_by_hand() -> None:
    """The root's values are .2 and .6, its return 1: deltas .4 and .4."""
    scheme = Gae(lam=0.5, ridge=1e-9)
    scheme.state.fit(SPREAD, SPREAD[:, 0])
    (credit,) = assign_step(scheme, [PAIR], [{}], seen(PAIR, [0.2, 0.6, 0.3, 0.9], [0, 0, 0, 0]))
    found = [credit.advantage[TurnKey("e0", *place)] for place in ORDER]
    assert found == pytest.approx([0.4 + 0.5 * 0.4, 0.4, 0.7, 0.1], abs=1e-4)
    found = [credit.advantage[TurnKey("e1", *place)] for place in ORDER]
    assert found == pytest.approx([0.4 - 0.5 * 0.6, -0.6, -0.3, -0.9], abs=1e-4)


def test_the_critic_finds_out_which_clones_matter() -> None:
    """The first clone's state after its turn holds the return, the second's holds noise; both say whose it is."""
    rng = np.random.default_rng(0)
    critic = Critic(decay=0.99)
    for step in range(60):
        right = rng.integers(2, size=8)
        one = group(*(three_agents(f"s{step}e{k}", float(value)) for k, value in enumerate(right)))
        empty = np.zeros(0, dtype=np.float32)
        internals = {}
        for episode, value in zip(one.episodes, right, strict=True):
            for key, _ in episode.turns():
                who = np.array([key.agent_id == clone for clone in CLONES], dtype=np.float32)
                did = who * (float(value) if key.agent_id == CLONES[0] else float(rng.integers(2)))
                before, after = np.append(who, [0, 0]), np.append(who, did)
                internals[key] = TurnInternals(before, after, empty, empty)
        (credit,) = assign_step(critic, [one], [{}], internals)
        fit(critic, [one], internals)
    by_clone = [
        np.array([float(np.mean(credit.advantage[TurnKey(e.episode_id, clone, 0)])) for e in one.episodes])
        for clone in CLONES
    ]
    assert by_clone[0] == pytest.approx(right - 0.5, abs=0.15)
    assert np.abs(by_clone[1]).max() < 0.15
    assert credit.diagnostics["critic_error"] < credit.diagnostics["return_variance"]


# In the laboratory


@pytest.mark.parametrize("game", ["cells", "dummy"])
@pytest.mark.slow
def test_learned_values_are_worth_more_than_they_cost_in_bias(game: str) -> None:
    one = solved(game)
    found = {
        type(scheme).__name__: sample_groups(
            learn(scheme, one, group_size=2, num_groups=400, seed=0), one, group_size=2, num_groups=400, seed=0
        )
        for scheme in (Rloo(), Critic(), Gae(lam=1.0))
    }
    length = np.linalg.norm(one.gradient)
    noise = {name: estimates.gradients.var(0).sum() / length**2 for name, estimates in found.items()}
    error = {
        name: np.linalg.norm(estimates.gradients.mean(0) - one.gradient) / length for name, estimates in found.items()
    }
    assert noise["Critic"] < 0.7 * noise["Rloo"]
    assert noise["Gae"] < 0.8 * noise["Rloo"]
    assert all(error[name] < 4 * np.sqrt(noise[name] / 400) for name in found)
    assert expected_gradient(Critic(), one, group_size=2) is None


# Where it is called


def test_without_a_policy_it_says_so() -> None:
    with pytest.raises(CreditError, match=r"'critic' needs internals of the policy \(hidden\)"):
        assign(Critic(), PAIR, {})


@pytest.mark.parametrize("wrapper", [Gated, lambda scheme: PerRole(clones=scheme)], ids=["gated", "per_role"])
@pytest.mark.parametrize("inner", ["critic", "gae", "remembering:RunningMean"])
def test_schemes_that_learn_are_not_wrapped(wrapper: Any, inner: str) -> None:
    with pytest.raises(ConfigError, match="choose a scheme that is a pure function of one group's records"):
        wrapper(PlugIn(inner))


class Looks(Rloo):
    """Looks, and learns nothing."""

    internals = frozenset({Internal.ENTROPY})

    def assign_step(self, groups: Any, replayed: Any, internals: Internals) -> list[Credit]:
        return [
            Credit({key: float(internals[key].entropies.sum()) for e in one.episodes for key, _ in e.turns()})
            for one in groups
        ]


class LooksForNothing(Rloo):
    """What it wants is a text."""

    internals = frozenset({"hiden"})  # type: ignore[arg-type]


class AssignsWithoutReplays(Rloo):
    def assign(self, group: Any) -> Credit:  # type: ignore[override]
        raise AssertionError


class FitOfTheFirstVersion(Rloo):
    def fit(self, groups: Any) -> None: ...  # type: ignore[override]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


class StepOfTheFirstVersion(Rloo):
    def assign_step(self, groups: Any, replayed: Any) -> list[Credit]:  # type: ignore[override]
        raise AssertionError


class Duck:
    """Has all methods, and no base class."""

    name = formula = source = "duck"
    promise, null_player = Rloo.promise, Rloo.null_player
    replays, assign = Rloo.replays, Rloo.assign


class AssignsNothing(CreditAssigner):
    name = formula = source = "nothing"
    promise, null_player = Rloo.promise, Rloo.null_player


class PromisesAText(Rloo):
    promise = "unbiased"  # type: ignore[assignment]


class KnowsItsPlace(Critic):
    """Once it has learned, a clone gets the more the later it was called."""

    def assign_step(self, groups: Any, replayed: Any, internals: Internals) -> Sequence[Credit]:
        credits = super().assign_step(groups, replayed, internals)
        if not self.state.value.is_fitted:
            return credits
        late = {key: sum(key.agent_id.path) for credit in credits for key in credit.advantage}
        return [Credit({key: value + late[key] for key, value in credit.advantage.items()}) for credit in credits]


class Forgetful(Critic):
    """Its state is lost on the way."""

    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "LooksForNothing",
            r"LooksForNothing.internals is frozenset\(\{'hiden'\}\); expected a frozenset of hidden and",
        ),
        ("AssignsWithoutReplays", r"AssignsWithoutReplays.assign cannot be called as assign\(group, replayed\)"),
        ("FitOfTheFirstVersion", r"FitOfTheFirstVersion.fit cannot be called as fit\(groups, internals\)"),
        ("StepOfTheFirstVersion", r"assign_step cannot be called as assign_step\(groups, replayed, internals\)"),
        ("Duck", "Duck is no subclass of selfcest_training.credit.base:CreditAssigner; derive it from that"),
        ("AssignsNothing", r"AssignsNothing lacks assign\(\); override it, or assign_step"),
        ("PromisesAText", "PromisesAText.promise is 'unbiased'; expected one of Promise.UNBIASED, "),
    ],
)
def test_a_class_that_is_no_scheme_of_this_version_is_refused_with_what_to_write(name: str, words: str) -> None:
    with pytest.raises(PlugInError, match=words):
        make_assigner(f"test_internals:{name}", {}, where="options")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Critic(), Gae(), Gae(lam=1.0), Looks()], ids=lambda s: type(s).__name__)
def test_conformance(scheme: CreditAssigner) -> None:
    check_assigner(scheme)


class CountsByNumber(Critic):
    """Its state has keys that JSON does not know."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "counts": {0: 1.0}}


class KeepsAnArray(Critic):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mean": np.zeros(2)}


@pytest.mark.parametrize("scheme", [CountsByNumber(), KeepsAnArray()], ids=lambda s: type(s).__name__)
def test_a_state_that_no_checkpoint_can_store_is_found_out(scheme: CreditAssigner) -> None:
    """A run ended at its first checkpoint, after the whole warm start."""
    with pytest.raises(ConformanceError, match=r"no checkpoint can store its state: .* expected dicts with text keys"):
        check_assigner(scheme)


def test_a_memory_that_is_lost_is_found_out() -> None:
    with pytest.raises(ConformanceError, match="put all learned state into it"):
        check_assigner(Forgetful())


def test_what_has_learned_is_held_to_the_same_rules() -> None:
    with pytest.raises(ConformanceError, match="ids must not matter"):
        check_assigner(KnowsItsPlace())


# In a run


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["critic", "gae", "test_internals:Looks"])
def test_a_run_pays_for_what_it_reads_and_resumes_to_the_same_end(tmp_path: Path, scheme: str) -> None:
    changes = {f"{RL}__credit": {"name": scheme}, f"{RL}__steps": 6, f"{RL}__minibatches": 2, "rows": "tree"}
    whole, spec = play(config(tmp_path / "whole", **changes)), config(tmp_path / "killed", **changes)
    resumed = crash_and_resume(spec)
    assert torch.equal(weights(resumed), weights(whole))
    assert whole.state.scored_tokens > 0
    assert rows(whole)[-1]["scored_tokens"] == whole.state.scored_tokens
    if scheme == "critic":
        assert "credit/critic_error" in rows(whole)[-1], "it has learned, and clones were called"
    assert resumed.state.scored_tokens == whole.state.scored_tokens
    state = whole.state
    assert state.compute_tokens == state.sampled_tokens + state.scored_tokens + 3 * state.trained_tokens
    assert rows(whole)[-1]["compute_tokens"] == state.compute_tokens
    plain = play(config(tmp_path / "plain", **{f"{RL}__steps": 2}))
    assert plain.state.scored_tokens == 0
