"""Plays counterfactual replays through the ordinary rollout, batched with each other and with whatever else is played.

    played = play_replays(records, [Replay.of("e7", {clone: Intervention.DEFAULT})], policy, rules)
    played[replay].record, played[replay].generated_tokens

A turn that a replay keeps costs nothing: its recorded generation stands, with its ids and log-probs. By nested accounts
a kept turn has the same prompt, grant and stream as in the episode (`counterfactual.restore` checks it), so reusing it
is exact. Everything else is sampled anew from the replay's own streams; recorded later actions never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from selfcest_agents.policy import Policy
from selfcest_agents.rollout import Generations, all_of, collect_failures, rollout
from selfcest_env.counterfactual import check_replay, replay_seed, restore, start_replay
from selfcest_env.errors import CreditError, did_you_mean
from selfcest_env.kernel import Kernel
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.rules import Rules
from selfcest_env.types import AgentId

Past = Callable[[Replay, EpisodeRecord, Rules], tuple[Kernel, Generations]]


@dataclass(frozen=True)
class ReplayRequest:
    """A replay, ready to be played by `rollout`, here or wherever it is sent to.

    Attributes:
        replay: which.
        record: the factual episode.
        past: how the replay begins, and the recorded generations of the turns that it keeps; stays behind when the
            request is pickled, because requests of one call share what it has worked out.
    """

    replay: Replay
    record: EpisodeRecord
    past: Past | None = field(default=None, repr=False, compare=False)

    @property
    def episode_id(self) -> str:
        return str(self.replay)

    @property
    def seed(self) -> int:
        """The episode's."""
        return self.record.seed

    def begin(self, rules: Rules) -> tuple[Kernel, Generations]:
        kernel, kept = (self.past or _past)(self.replay, self.record, rules)
        return kernel.fork(), kept

    def turn_seed(self, agent_id: AgentId, turn: int) -> int:
        return replay_seed(self.replay, self.seed, agent_id, turn)

    def __reduce__(self) -> tuple[type[ReplayRequest], tuple[Replay, EpisodeRecord]]:
        return ReplayRequest, (self.replay, self.record)


@dataclass(frozen=True)
class PlayedReplay:
    """A replay that has been played, and its price.

    Attributes:
        record: the counterfactual episode, unscored; its id is `str(replay)`, its seed the factual one.
        generated_tokens: tokens sampled for it; kept turns have been paid for.
        prompt_tokens: tokens that the environment wrote before the turns played anew.
    """

    record: EpisodeRecord
    generated_tokens: int
    prompt_tokens: int


def replay_requests(factual: Iterable[EpisodeRecord], replays: Iterable[Replay], rules: Rules) -> list[ReplayRequest]:
    """Requests for `rollout`, one per different replay, in the order of their first mention.

    Args:
        factual: finished episodes, among them all that are named.
        replays: what to play.
        rules: those that the episodes were played by; the limits are each episode's own.

    Raises:
        CreditError: a replay of an unknown episode or agent, or of two agents of whom one descends from the other;
            two episodes of one name.
        RecordError: another protocol, prompt variant or token counter than the episode's.
    """
    records = {}
    for record in factual:
        if record.episode_id in records:
            raise CreditError(
                f"two episodes are named {record.episode_id!r}; a replay could not tell which one it means"
            )
        records[record.episode_id] = record
    wanted = list(dict.fromkeys(replays))
    for replay in wanted:
        if replay.episode_id not in records:
            raise CreditError(
                f"replay {replay}: episode {replay.episode_id!r} is not among the {len(records)} that were played."
                + did_you_mean(replay.episode_id, records)
            )
        check_replay(replay, records[replay.episode_id])
    kernels = {name: _restore(records[name], rules) for name in dict.fromkeys(replay.episode_id for replay in wanted)}

    @cache
    def of_question(question: Replay) -> tuple[Kernel, Generations]:
        return _past_of(question, records[question.episode_id], kernels[question.episode_id])

    def past(replay: Replay, record: EpisodeRecord, rules: Rules) -> tuple[Kernel, Generations]:
        return of_question(replace(replay, sample=0))  # samples of one question begin alike

    return [ReplayRequest(replay, records[replay.episode_id], past) for replay in wanted]


def play_replays(
    factual: Iterable[EpisodeRecord],
    replays: Sequence[Replay],
    policy: Policy,
    rules: Rules,
    *,
    max_concurrent: int = 512,
) -> dict[Replay, PlayedReplay]:
    """Play every replay to its end, one that is asked twice once.

    Arguments and errors as `replay_requests`, and `UnplayedError` as `rollout`.
    """
    requests = replay_requests(factual, replays, rules)
    records, unplayed = collect_failures(partial(rollout, requests, policy, rules, max_concurrent=max_concurrent))
    found = {record.episode_id: record for record in records}
    return all_of(
        {r.replay: played(r, found[r.episode_id], rules) for r in requests if r.episode_id in found}, unplayed
    )


def played(request: ReplayRequest, record: EpisodeRecord, rules: Rules) -> PlayedReplay:
    """What `rollout` made of a request, with its price."""
    _, kept = request.begin(rules)
    new = [turn.facts for key, turn in record.turns() if (key.agent_id, key.turn) not in kept]
    return PlayedReplay(record, sum(facts.generated_tokens for facts in new), sum(facts.prompt_tokens for facts in new))


def _past(replay: Replay, record: EpisodeRecord, rules: Rules) -> tuple[Kernel, Generations]:
    return _past_of(replay, record, _restore(record, rules))


def _restore(record: EpisodeRecord, rules: Rules) -> Kernel:
    return restore(record, rules.with_limits(record.limits))  # an episode may have had limits of its own


def _past_of(replay: Replay, record: EpisodeRecord, factual: Kernel) -> tuple[Kernel, Generations]:
    """How a replay begins, and the recorded generations that it keeps."""
    kernel = start_replay(replay, factual)
    places = [(step.agent_id, step.turn) for step in kernel.log]
    return kernel, {(agent, turn): record.by_id[agent].turns[turn].generation for agent, turn in places}
