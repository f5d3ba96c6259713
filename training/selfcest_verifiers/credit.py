"""Assigns the credit of this project to episodes of verifiers, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import verifiers.v1 as vf

from selfcest_env.errors import ConfigError, PolicyError, RecordError, install_hint
from selfcest_env.record import EpisodeGroup
from selfcest_env.types import Fault

try:
    import torch  # noqa: F401  # The schemes need it, and playing does not.
except ImportError as error:
    raise ConfigError(f"{error}; run: {install_hint('train')}") from error

from selfcest_training.credit import CreditAssigner
from selfcest_training.credit.offline import StoredEpisodes
from selfcest_training.export.stored import build_credited_samples
from selfcest_training.learner.options import Denominator
from selfcest_verifiers.env import AGENT_ID, read_record


def assign_credit(
    episodes: Sequence[vf.Episode],
    assigner: CreditAssigner,
    *,
    denominator: Denominator = Denominator.CONSTANT,
    constant: float = 100.0,
) -> None:
    """Write the advantages of a scheme, and the weights of this project's loss, into a group of episodes of one task.

    `node.advantages` has one number for each sampled token, and `node.loss_weights["rl"]` has one for each token. With
    these factors, a trainer that divides by the number of trained tokens of the group has the sum of our learner.

    Args:
        episodes: finished episodes of `DelegationEnv` with a training client.
        assigner: credit scheme that needs no replays.
        denominator, constant: see `selfcest_training.learner.batch.build_samples`.

    Raises:
        RecordError: an engine ignored a grant, so its tokens are not those of the game.
        NotInRecordsError: the scheme needs replays.
    """
    records = [read_record(episode) for episode in episodes]
    for record in records:
        for key, turn in record.turns():
            if turn.facts.fault is Fault.OVER_GRANT:
                raise RecordError(f"{key} is over its grant, so this episode cannot be trained; check the engine")
    group = EpisodeGroup(records[0].task, tuple(records))
    stored = StoredEpisodes("the group", (group,), {})
    credited = build_credited_samples(stored, assigner, denominator=denominator, constant=constant)
    sample_by_context = {(sample.episode_id, str(sample.agent_id)): sample for sample in credited.samples}
    for record, episode in zip(records, episodes, strict=True):
        for trace in episode.traces:
            sample = sample_by_context.get((record.episode_id, trace.info[AGENT_ID]))
            ids = [token for node in trace.nodes for token in node.token_ids]
            if sample is not None and sample.token_ids.tolist() != ids:
                raise PolicyError(f"trace {trace.id} has other ids than {record.episode_id}/{sample.agent_id}")
            advantages = [0.0] * len(ids) if sample is None else sample.advantages.tolist()
            weights = [0.0] * len(ids) if sample is None else credited.loss_weights(sample).tolist()
            start = 0
            for node in trace.nodes:
                end = start + len(node.token_ids)
                if any(node.mask):
                    sampled = zip(advantages[start:end], node.mask, strict=True)
                    node.advantages = [advantage for advantage, is_sampled in sampled if is_sampled]
                node.loss_weights = {"rl": weights[start:end]}
                start = end
