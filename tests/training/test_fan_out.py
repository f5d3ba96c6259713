"""However an episode is cut into rows, whatever is excluded: one step, and the same gradient for what trains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from records import group, three_agents
from test_batch_and_losses import gradient

from selfcest_agents.tiny import TinyConfig, build_tiny
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.types import ROOT, AgentId, Status, TurnKey
from selfcest_training.credit import Coma, Credit, CreditAssigner, Gated, Rloo, assign
from selfcest_training.learner.batch import Sample, build_samples
from selfcest_training.learner.options import Denominator, LossConfig, LossTermConfig, OptimizerConfig
from selfcest_training.learner.update import Learner

SWAP = {ROOT: ROOT, ROOT.child(0): ROOT.child(1), ROOT.child(1): ROOT.child(0)}


def samples_of(credit: Credit, *episodes: EpisodeRecord) -> list[Sample]:
    return build_samples([group(*episodes)], [credit], denominator=Denominator.CONSTANT, constant=10.0)


def swapped(episode: EpisodeRecord, name: str | None = None) -> EpisodeRecord:
    """The same episode with its two clones under each other's ids."""
    agents = sorted((replace(a, agent_id=SWAP[a.agent_id]) for a in episode.agents), key=lambda a: a.agent_id)
    return replace(episode, episode_id=name or episode.episode_id, agents=tuple(agents))


def by_turn(sample: Sample) -> list[Sample]:
    """One row per trained turn: its whole past as context, one stretch of the mask each."""
    starts = np.flatnonzero(np.diff(sample.loss_mask.astype(int), prepend=0) == 1)
    ends = np.flatnonzero(np.diff(sample.loss_mask.astype(int), append=0) == -1) + 1
    rows = []
    for start, end in zip(starts, ends, strict=True):
        mask = np.zeros(end, dtype=bool)
        mask[start:end] = True
        cut = {name: getattr(sample, name)[:end] for name in ("token_ids", "behavior_logprobs", "advantages")}
        rows.append(replace(sample, loss_mask=mask, temperature=sample.temperature[:end], **cut))
    return rows


@pytest.mark.parametrize("micro_batch_tokens", [1, 9, 10_000])
def test_more_rows_or_smaller_micro_batches_change_nothing(micro_batch_tokens: int) -> None:
    episodes = (three_agents("a", 1.0), three_agents("b", 0.0))
    whole = samples_of(Rloo().assign(group(*episodes), {}), *episodes)
    cut = [row for sample in whole for row in by_turn(sample)]
    assert (len(whole), len(cut)) == (6, 8)
    expected = gradient(whole, 10_000)
    assert expected.abs().max() > 1e-6
    torch.testing.assert_close(gradient(cut, micro_batch_tokens), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scheme", [Rloo(), Gated(), Coma()])
def test_reordering_clones_changes_nothing(scheme: CreditAssigner) -> None:
    episodes = (three_agents("a", 1.0, second_clone=Status.OUT_OF_TURNS), three_agents("b", 0.25))

    def records(change: dict[AgentId, AgentId]) -> dict[Replay, EpisodeRecord]:
        clones = (ROOT.child(0), ROOT.child(1))
        returns = {
            (episode, clone): 0.1 + 0.3 * i for i, (episode, clone) in enumerate((e, c) for e in "ab" for c in clones)
        }
        replays = {Replay.of(e, {change[c]: Intervention.RESAMPLE}): r for (e, c), r in returns.items()}
        return {name: three_agents(str(name), value) for name, value in replays.items()}

    there = assign(scheme, group(*episodes), records({name: name for name in SWAP}))
    back = assign(scheme, group(*map(swapped, episodes)), records(SWAP))
    mirrored = {TurnKey(k.episode_id, SWAP[k.agent_id], k.turn): v for k, v in back.advantage.items()}
    assert mirrored == there.advantage
    expected = gradient(samples_of(there, *episodes), 10_000)
    found = gradient(samples_of(back, *map(swapped, episodes)), 10_000)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def policy_gradient(samples: list[Sample], kl_coefficient: float) -> torch.Tensor:
    """Of one step with a KL to another model."""
    config = TinyConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)
    model, reference = build_tiny(config, seed=0).double(), build_tiny(config, seed=1).double()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, max_grad_norm=1e9)
    learner = Learner(model, optimizer, pad_id=0, micro_batch_tokens=1000, reference=reference)
    learner.optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    learner.policy_step(samples, LossConfig(terms={"kl": LossTermConfig(kl_coefficient)} if kl_coefficient else {}))
    assert learner.num_steps == 1
    return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


def test_an_excluded_turn_enters_neither_the_surrogate_nor_the_kl() -> None:
    episodes = (three_agents("a", 1.0, second_clone=Status.OUT_OF_TURNS), three_agents("b", 0.0))
    credit = Gated().assign(group(*episodes), {})
    failed = TurnKey("a", ROOT.child(1), 0)
    assert credit.excluded == {failed}
    excluded = policy_gradient(samples_of(credit, *episodes), 0.1)
    # The batch of hand: everybody's advantage, without the failed clone's row.
    everyone = Credit({**credit.advantage, failed: credit.advantage[TurnKey("a", ROOT, 0)]})
    rows = samples_of(everyone, *episodes)
    without = [row for row in rows if (row.episode_id, row.agent_id) != ("a", ROOT.child(1))]
    assert len(without) == len(rows) - 1
    torch.testing.assert_close(excluded, policy_gradient(without, 0.1), rtol=1e-9, atol=1e-12)
    # An advantage of 0 is another thing: the KL still sees the turn.
    zero = policy_gradient(samples_of(Credit({**credit.advantage, failed: 0.0}), *episodes), 0.1)
    assert (zero - excluded).abs().max() > 1e-3 * excluded.abs().max()
    torch.testing.assert_close(
        policy_gradient(samples_of(Credit({**credit.advantage, failed: 0.0}), *episodes), 0.0),
        policy_gradient(samples_of(credit, *episodes), 0.0),
        rtol=1e-9, atol=1e-12,
    )  # fmt: skip


def test_an_excluded_turn_of_an_agent_that_trains_stays_context_and_has_no_gradient() -> None:
    episodes = (three_agents("a", 1.0), three_agents("b", 0.0))
    credit = Rloo().assign(group(*episodes), {})
    first = TurnKey("a", ROOT, 0)
    kept = {key: value for key, value in credit.advantage.items() if key != first}
    rows = samples_of(Credit(kept, frozenset({first})), *episodes)
    root = next(row for row in rows if (row.episode_id, row.agent_id) == ("a", ROOT))
    assert root.token_ids.tolist() == [1, 2, 10, 11, 3, 4, 5, 12]
    assert root.loss_mask.tolist() == [False] * 7 + [True]
    alone = samples_of(Credit({first: credit.advantage[first]}, frozenset(kept)), *episodes)
    assert [(row.episode_id, row.agent_id) for row in alone] == [("a", ROOT)]
    whole = gradient(samples_of(credit, *episodes), 1000)
    torch.testing.assert_close(gradient(rows, 1000) + gradient(alone, 1000), whole, rtol=1e-6, atol=1e-9)
