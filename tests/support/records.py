"""Small hand-made records for the tests of credit, batches and losses."""

from __future__ import annotations

import torch
from torch import Tensor

from selfcest_env.record import AgentRecord, EpisodeGroup, EpisodeRecord, Generation, Turn
from selfcest_env.types import ROOT, AgentId, FinishReason, Limits, Outcome, Status, Task, TurnFacts
from selfcest_training.learner.losses import LossInputs

TASK = Task("t0", "1+1", "2", "test")


def turn(
    prompt: tuple[int, ...],
    ids: tuple[int, ...],
    *,
    outcome: Outcome = Outcome.ANSWERED,
    children: tuple[AgentId, ...] = (),
    logprob: float = -1.0,
    temperature: float = 1.0,
) -> Turn:
    facts = TurnFacts(len(prompt), len(ids), 64, FinishReason.STOP, outcome, children=children)
    return Turn(facts, Generation("", FinishReason.STOP, prompt, ids, (logprob,) * len(ids), temperature))


def agent(agent_id: AgentId, *turns: Turn, status: Status = Status.ANSWERED) -> AgentRecord:
    born_at = None if agent_id == ROOT else 0
    return AgentRecord(agent_id, "", (), None, born_at, status, turns, "2" if status is Status.ANSWERED else None)


def three_agents(episode_id: str, reward: float, *, second_clone: Status = Status.ANSWERED) -> EpisodeRecord:
    """A root with two turns (2 + 1 tokens) and two clones (3 and 2 tokens); the second may have failed."""
    clones = (ROOT.child(0), ROOT.child(1))
    agents = (
        agent(ROOT, turn((1, 2), (10, 11), outcome=Outcome.DELEGATED, children=clones), turn((3, 4, 5), (12,))),
        agent(clones[0], turn((6,), (13, 14, 15))),
        agent(clones[1], turn((7,), (16, 17)), status=second_clone),
    )
    return EpisodeRecord(episode_id, TASK, Limits(), 0, agents, {"correct": reward})


def group(*episodes: EpisodeRecord) -> EpisodeGroup:
    return EpisodeGroup(TASK, episodes)


def loss_inputs(now: Tensor, old: Tensor, advantages: Tensor, mask: Tensor | None = None) -> LossInputs:
    """Of roots, whose sampler is the reference point of the ratio; every token trains by default."""
    everywhere = torch.ones_like(now, dtype=torch.bool)
    depth = torch.zeros(len(now), 1, dtype=torch.int64)
    return LossInputs(now, old, old, advantages, everywhere if mask is None else mask, depth)
