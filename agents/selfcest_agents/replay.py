"""Play counterfactual replays with the ordinary rollout, where they can be batched with other episodes.

    played = play_replays(records, [Replay.of("e7", {clone: Intervention.DEFAULT})], policy, rules)
    played[replay].record, played[replay].generated_tokens

A turn that a replay reuses costs nothing: it has its recorded generation, with ids and log-probs. Nested accounts give
such a turn the same prompt, grant and seed as in the episode (`counterfactual.restore` checks this), so the reuse is
exact. All other turns are sampled with the replay's own seeds; later recorded actions are never reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from selfcest_agents.policy import Policy
from selfcest_agents.rollout import Generations, collect_failures, raise_failures, rollout
from selfcest_env.counterfactual import check_replay, replay_seed, restore, start_replay
from selfcest_env.errors import CreditError, did_you_mean
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.rules import Rules
from selfcest_env.types import AgentId

Past = tuple[Kernel, Generations]
"""The game at the start of a replay, and the recorded generations of the reused turns by agent and turn."""


@dataclass(frozen=True)
class ReplayRequest:
    """A replay to be played by `rollout`, in this process or another one.

    Attributes:
        replay: interventions, and the number of the sample.
        record: the factual episode.
        past: function that returns the replay's past; `None` to compute it from the record. The requests of one call
            share a function with a cache. It is not pickled, and the request then computes its past.
    """

    replay: Replay
    record: EpisodeRecord
    past: Callable[[Replay], Past] | None = field(default=None, repr=False, compare=False)

    @property
    def episode_id(self) -> str:
        return str(self.replay)

    @property
    def seed(self) -> int:
        """Seed of the factual episode."""
        return self.record.seed

    def begin(self, rules: Rules) -> Past:
        if self.past is None:
            kernel, reused = _start_from(_restore(self.record, rules), self.replay, self.record)
        else:
            kernel, reused = self.past(self.replay)
        return kernel.fork(), reused

    def turn_seed(self, agent_id: AgentId, turn: int) -> int:
        return replay_seed(self.replay, self.seed, agent_id, turn)

    def __reduce__(self) -> tuple[type[ReplayRequest], tuple[Replay, EpisodeRecord]]:
        # Without `past`, which is a closure and cannot be pickled.
        return ReplayRequest, (self.replay, self.record)


@dataclass(frozen=True)
class PlayedReplay:
    """The record of a replay, and its price without the reused turns.

    Attributes:
        record: the counterfactual episode, not scored. Its id is `str(replay)`, its seed is that of the episode.
        generated_tokens: number of tokens that were sampled.
        prompt_tokens: number of tokens that the environment wrote before the sampled turns.
    """

    record: EpisodeRecord
    generated_tokens: int
    prompt_tokens: int


def replay_requests(factual: Iterable[EpisodeRecord], replays: Iterable[Replay], rules: Rules) -> list[ReplayRequest]:
    """Return a request for each distinct replay, in the order of their first occurrence.

    Args:
        factual: finished episodes, including all that the replays name.
        replays: replays to play. Duplicates are left out.
        rules: rules of the episodes. Their limits are replaced by those of each episode.

    Raises:
        CreditError: a replay names an unknown episode or agent, or two agents of which one descends from the other; or
            two episodes have the same id.
        RecordError: the rules have another protocol, prompt variant or token counter than the episode.
    """
    records: dict[str, EpisodeRecord] = {}
    for record in factual:
        if record.episode_id in records:
            raise CreditError(
                f"found two episodes with the id {record.episode_id!r}; expected unique ids, by which replays name them"
            )
        records[record.episode_id] = record
    distinct_replays = list(dict.fromkeys(replays))
    # All replays are checked before the first episode is restored, which takes longer.
    for replay in distinct_replays:
        if replay.episode_id not in records:
            raise CreditError(
                f"replay {replay}: episode {replay.episode_id!r} is not among the {len(records)} that were played."
                + did_you_mean(replay.episode_id, records)
            )
        check_replay(replay, records[replay.episode_id])
    kernel_by_episode: dict[str, Kernel] = {}
    for replay in distinct_replays:
        if replay.episode_id not in kernel_by_episode:
            kernel_by_episode[replay.episode_id] = _restore(records[replay.episode_id], rules)

    @cache
    def past_of_first_sample(replay: Replay) -> Past:
        return _start_from(kernel_by_episode[replay.episode_id], replay, records[replay.episode_id])

    def past(replay: Replay) -> Past:
        # All samples of the same interventions start with the same game.
        return past_of_first_sample(replace(replay, sample=0))

    return [ReplayRequest(replay, records[replay.episode_id], past) for replay in distinct_replays]


def play_replays(
    factual: Iterable[EpisodeRecord],
    replays: Sequence[Replay],
    policy: Policy,
    rules: Rules,
    *,
    max_concurrent: int = 512,
) -> dict[Replay, PlayedReplay]:
    """Play all distinct replays to their end.

    The arguments and errors are those of `replay_requests` and `rollout`.
    """
    requests = replay_requests(factual, replays, rules)
    records, unplayed = collect_failures(partial(rollout, requests, policy, rules, max_concurrent=max_concurrent))
    record_by_id = {record.episode_id: record for record in records}
    played: dict[Replay, PlayedReplay] = {}
    for request in requests:
        if request.episode_id in record_by_id:
            played[request.replay] = price_replay(request, record_by_id[request.episode_id], rules)
    return raise_failures(played, unplayed)


def price_replay(request: ReplayRequest, record: EpisodeRecord, rules: Rules) -> PlayedReplay:
    """Return the record that `rollout` made of a request together with its price."""
    _, reused = request.begin(rules)
    sampled = [turn.facts for key, turn in record.turns() if (key.agent_id, key.turn) not in reused]
    generated_tokens = sum(facts.generated_tokens for facts in sampled)
    prompt_tokens = sum(facts.prompt_tokens for facts in sampled)
    return PlayedReplay(record, generated_tokens, prompt_tokens)


def _restore(record: EpisodeRecord, rules: Rules) -> Kernel:
    return restore(record, rules.with_limits(record.limits))  # a request may have had its own limits


def _start_from(factual: Kernel, replay: Replay, record: EpisodeRecord) -> Past:
    """Return the past of a replay.

    Args:
        factual: restored game of the factual episode.
        replay: interventions of the replay.
        record: record of the factual episode.
    """
    kernel = start_replay(replay, factual)
    generations = {
        (entry.agent_id, entry.turn): record.by_id[entry.agent_id].turns[entry.turn].generation for entry in kernel.log
    }
    return kernel, generations
