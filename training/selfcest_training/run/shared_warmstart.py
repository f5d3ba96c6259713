"""Variants whose warm starts begin with the same phases share these phases, which are trained once per seed.

The weights at the end of a phase depend on the phases up to it with their limits, on the options of the warm start and
on the seed, never on the variant's name. So one variant trains the shared phases and writes the checkpoint at their
end also into the folders of the others, which resume from it. The compute of the phases counts for every variant.
"""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from selfcest_env.structure import to_builtins
from selfcest_training.config import RunConfig, override_limits
from selfcest_training.files import atomic_write
from selfcest_training.learner.state import LearnerState
from selfcest_training.run.checkpoint import (
    CheckpointManifest,
    TrainState,
    find_newest_checkpoint,
    list_checkpoints,
    read_state,
    save_checkpoint,
)


@dataclass(frozen=True)
class SharedPhases:
    """The phases that two variants share.

    Attributes:
        leader: variant that trains them.
        follower: variant that resumes from their end.
        tokens: demonstration tokens of the phases.
        whole: whether they are the complete warm start of both variants.
    """

    leader: str
    follower: str
    tokens: int
    whole: bool

    def are_ahead_of(self, state: TrainState) -> bool:
        """Return whether a leader in this state will come to the end of the phases.

        The phases that two different warm starts share have no probe. So a second attempt means that the first one has
        come to their end, and a follower without it starts with its own first attempt.
        """
        is_shared_attempt = self.whole or state.attempt == 0
        return state.stage == "warmstart" and is_shared_attempt and state.demonstration_tokens < self.tokens


def find_shared_phases(config: RunConfig) -> list[SharedPhases]:
    """Return the shared phases of every variant that has some, with the earlier variant that shares the most."""
    shared: list[SharedPhases] = []
    variants = list(config.variants)
    for i, follower in enumerate(variants):
        phases = config.variants[follower].warmstart.phases
        counts = {leader: _count_shared_phases(config, leader, follower) for leader in variants[:i]}
        # The first one of several with the same number.
        leader = max(counts, key=counts.__getitem__, default=follower)
        count = counts.get(leader, 0)
        if count:
            tokens = sum(phase.tokens for phase in phases[:count])
            whole = count == len(phases) == len(config.variants[leader].warmstart.phases)
            shared.append(SharedPhases(leader, follower, tokens, whole))
    return shared


def find_leader(config: RunConfig, variant: str, seed: int) -> str | None:
    """Return the variant whose checkpoint a job waits for; `None` if the job has begun or begins by itself."""
    if has_begun(config, variant, seed):
        return None
    for shared in find_shared_phases(config):
        if shared.follower == variant and shared.are_ahead_of(_read_newest_state(config, shared.leader, seed)):
            return shared.leader
    return None


def has_begun(config: RunConfig, variant: str, seed: int) -> bool:
    """Return whether a job has a checkpoint, its own one or that of shared phases."""
    return bool(list_checkpoints(_checkpoints_folder(config, variant, seed)))


def hand_over(
    leader: Path, follower: Path, learner: LearnerState, state: TrainState, manifest: CheckpointManifest
) -> None:
    """Write the checkpoint at the end of shared phases into the folder of a job, unless that has begun already.

    Args:
        leader, follower: folders of the two jobs.
        learner: weights and moments of the leader.
        state, manifest: as for a checkpoint of the leader.
    """
    checkpoints = follower / "checkpoints"
    if list_checkpoints(checkpoints):
        return
    checkpoints.mkdir(parents=True, exist_ok=True)
    with atomic_write(follower / "metrics.jsonl") as partial:
        shutil.copyfile(leader / "metrics.jsonl", partial)
    # Last, because a job with a checkpoint counts as begun.
    save_checkpoint(checkpoints, learner, state, manifest=manifest)


def _count_shared_phases(config: RunConfig, first: str, second: str) -> int:
    """Return the number of phases, from the first one on, after which two variants have the same weights."""
    warm_starts = [config.variants[name].warmstart for name in (first, second)]
    if replace(warm_starts[0], phases=()) != replace(warm_starts[1], phases=()):
        return 0
    # The learning rate decays over all demonstration tokens.
    num_tokens = {sum(phase.tokens for phase in warm_start.phases) for warm_start in warm_starts}
    if len(num_tokens) > 1 and warm_starts[0].optimizer.decay_share:
        return 0
    texts = [_describe_phases(config, name) for name in (first, second)]
    count = 0
    while count < min(map(len, texts)) and texts[0][count] == texts[1][count]:
        count += 1
    if count == len(texts[0]) == len(texts[1]):
        return count
    # After a failed probe the attempt begins again, which would concern phases of one variant only.
    for i, phase in enumerate(warm_starts[0].phases[:count]):
        if phase.min_accuracy is not None:
            return i
    return count


def _describe_phases(config: RunConfig, variant: str) -> list[str]:
    """Return a text for every phase, which is equal for phases with the same demonstrations.

    A text and not the phase, because demonstrations also depend on the order of families and styles.
    """
    texts = []
    for phase in config.variants[variant].warmstart.phases:
        limits = override_limits(config.limits_of(variant), phase.limits, "phase.limits")
        texts.append(json.dumps(to_builtins([replace(phase, limits={}), limits])))
    return texts


def _read_newest_state(config: RunConfig, variant: str, seed: int) -> TrainState:
    """Return the state from which a job resumes."""
    with warnings.catch_warnings():
        # The job itself warns if it resumes from an older checkpoint.
        warnings.simplefilter("ignore")
        newest = find_newest_checkpoint(config.job_folder(variant, seed))
    return TrainState() if newest is None else read_state(newest[0])


def _checkpoints_folder(config: RunConfig, variant: str, seed: int) -> Path:
    return config.job_folder(variant, seed) / "checkpoints"
