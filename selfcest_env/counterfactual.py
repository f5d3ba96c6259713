"""Counterfactual episodes: an episode without some of its turns, and the state from which a `Replay` is played.

A replay intervenes on an agent's first turn, or on a later one that it names. It keeps every turn that is neither
intervened on nor a descendant of such a turn (`tree.is_descendant`). An agent whose reply is replaced is *absent*. Its
siblings keep their grants, its own grant stays with the parent, and nothing is charged or counted for it. Its parent
reads the replacement, by default the reply of a failed clone (`tree.get_reply`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from selfcest_env.errors import CreditError, GameError, RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import short_name
from selfcest_env.record import EpisodeRecord
from selfcest_env.replay import Replay
from selfcest_env.rules import Rules
from selfcest_env.seeding import turn_seed
from selfcest_env.tree import is_descendant
from selfcest_env.types import AgentId, Fault, Usage


def fork_before(
    kernel: Kernel, *turns: tuple[AgentId, int], absent: Mapping[AgentId, str | None] | None = None
) -> Kernel:
    """Return a copy of the episode without these turns and all of their descendants.

    Siblings' steps are kept, and the ancestors' turns after the join are not. Accounts are nested, so every
    interleaving gives the same copy, and its ledger is the one in force when the turns were opened.

    Args:
        kernel: the episode, finished or running.
        turns: (agent, turn) of the episode, played or open.
        absent: further agents to leave out, with their replies as in `Kernel`. Their first turns are among `turns`.

    Raises:
        GameError: the episode has no such turn.
    """
    for agent_id, turn in turns:
        state = kernel.agents.get(agent_id)
        if state is None or not 0 <= turn < len(state.turns) + (state.turn is not None):
            raise GameError(f"cannot fork before {agent_id}/turn{turn}: the episode has no such turn")

    def is_kept(agent_id: AgentId, index: int) -> bool:
        return not any(is_descendant(kernel.agents, (agent_id, index), turn) for turn in turns)

    # A clone of a later call that gets the place of one that was absent is not that clone.
    kept = {agent_id: reply for agent_id, reply in kernel.absent.items() if is_kept(agent_id, 0)}
    other = Kernel(kernel.task, kernel.rules, kept | dict(absent or {}))
    for step in kernel.log:
        if is_kept(step.agent_id, step.turn):
            other.step(step.agent_id, step.action, step.usage, step.text)
    return other


def restore(record: EpisodeRecord, rules: Rules) -> Kernel:
    """Return the finished kernel of a record, by playing the texts of its agents again.

    Raises:
        RecordError: the episode was played with another prompt variant, or these rules lead to another episode.
    """
    *_, kernel = replay_turns(record, rules)
    return kernel


def replay_turns(
    record: EpisodeRecord, rules: Rules, choose: Callable[[Kernel], AgentId] = lambda kernel: kernel.ready()[0]
) -> Iterator[Kernel]:
    """Play the turns of a record again. Yield the kernel, always the same object, at its start and after every turn.

    Args:
        record: the episode.
        rules: the rules that it was played by.
        choose: picks the next agent among those that are ready.

    Raises:
        RecordError: as for `restore`, as soon as a turn differs from the record.
    """
    if record.prompt_variant is not None:
        played = tuple(map(short_name, record.prompt_variant))  # early records contain long names in full
        if rules.prompt_variant != played:
            raise RecordError(
                f"episode {record.episode_id} was played with {_describe_variants(played)}, and these rules have "
                f"{_describe_variants(rules.prompt_variant)}; pass rules with the same one, made by "
                "rules.with_variant(...)"
            )
    turns = {(key.agent_id, key.turn): turn for key, turn in record.turns()}
    kernel = Kernel(record.task, rules, {agent.agent_id: agent.reply for agent in record.agents if agent.absent})
    yield kernel
    while not kernel.done:
        agent_id = choose(kernel)
        turn = turns.get((agent_id, len(kernel.agents[agent_id].turns)))
        if turn is None:
            break
        facts = turn.facts
        # A text over its grant was charged only the grant. One more token puts it over the grant again.
        used = facts.generated_tokens + (facts.fault is Fault.OVER_GRANT)
        kernel.play(agent_id, turn.generation.text, Usage(used, facts.finish_reason))
        if kernel.agents[agent_id].turns[-1] != facts:
            break
        yield kernel
    if not _matches(kernel, record):
        raise RecordError(
            f"episode {record.episode_id} cannot be restored: under these rules its texts lead to another episode; "
            "pass the limits, the protocol and the token counter that it was played with"
            + ("" if record.prompt_variant is not None else ", and its prompt variant, which this record does not name")
        )


def _describe_variants(prompt_variant: tuple[str, ...]) -> str:
    return f"the prompt variant {' and '.join(prompt_variant)}" if prompt_variant else "no prompt variant"


def _matches(kernel: Kernel, record: EpisodeRecord) -> bool:
    """Return whether limits, grants, statuses, replies and turns of a kernel equal those of a record."""
    recorded = {}
    for agent in record.agents:
        facts = [turn.facts for turn in agent.turns]
        recorded[agent.agent_id] = (agent.granted_tokens, agent.status, agent.reply, facts)
    played = {
        agent_id: (state.grant.total_tokens, state.status, state.reply, list(state.turns))
        for agent_id, state in kernel.agents.items()
    }
    return kernel.limits == record.limits and played == recorded


def check_replay(replay: Replay, record: EpisodeRecord) -> None:
    """Raise `CreditError` for a turn that the episode lacks, or for an intervention that undoes another one."""
    starts = [(agent_id, change.turn) for agent_id, change in replay.interventions]
    for agent_id, turn in starts:
        agent = record.by_id.get(agent_id)
        if agent is None or not agent.turns:
            raise CreditError(
                f"replay {replay}: agent {agent_id} took no turn in episode {record.episode_id}; expected one of "
                + ", ".join(str(agent.agent_id) for agent in record.agents if agent.turns)
            )
        if turn >= len(agent.turns):
            raise CreditError(
                f"replay {replay}: agent {agent_id} took {len(agent.turns)} turns in episode {record.episode_id}; "
                f"expected turn 0 to {len(agent.turns) - 1}"
            )
    for start in starts:
        for other in starts:
            if other != start and is_descendant(record.by_id, start, other):
                agent_id, turn = start
                other_id, other_turn = other
                raise CreditError(
                    f"replay {replay}: {agent_id}/turn{turn} descends from {other_id}/turn{other_turn}, so it may not "
                    f"exist after the intervention on {other_id}; make two replays of them"
                )


def is_replayed_turn(replay: Replay, record: EpisodeRecord, agent_id: AgentId, turn: int) -> bool:
    """Return whether a turn in a replay's record was played for the replay. The other turns are the episode's own."""
    starts = ((other, change.turn) for other, change in replay.interventions)
    return any(is_descendant(record.by_id, (agent_id, turn), start) for start in starts)


def start_replay(replay: Replay, kernel: Kernel) -> Kernel:
    """Return the state from which a replay is played: the finished `kernel` without descendants of the interventions.

    Raises:
        CreditError: a replacement has more than `reply_tokens`, so no clone could have sent it.
    """
    absent: dict[AgentId, str | None] = {}
    for agent_id, change in replay.interventions:
        if change.absent:
            absent[agent_id] = change.reply if change.kind == "replace" else None
            text = kernel.rules.protocol.neutralise(change.reply)  # the kernel prices a clone's reply in the same way
            bound = kernel.limits.reply_tokens
            tokens = kernel.rules.counter.count_text(text)
            if bound is not None and tokens > bound:
                raise CreditError(
                    f"replay {replay}: the reply for {agent_id} has {tokens} tokens, over reply_tokens = {bound}"
                )
    starts = [(agent_id, change.turn) for agent_id, change in replay.interventions]
    return fork_before(kernel, *starts, absent=absent)


def replay_seed(replay: Replay, seed: int, agent_id: AgentId, turn: int) -> int:
    """Return the seed of a turn that a replay samples; `seed` is the episode's.

    A resampled agent and its subtree draw from streams of kind "resample", all other agents from kind "after". Neither
    is the factual stream, and both change with the sample. Replays of one episode with equal `sample` share the streams
    "after" as common random numbers. A replay of a replay shares no stream with it.
    """
    resampled = any(agent_id.is_under(other) and change.kind == "resample" for other, change in replay.interventions)
    kind = ("resample" if resampled else "after") + (f" in {replay.episode_id}" if replay.is_nested else "")
    return turn_seed(seed, agent_id, turn, kind, replay.sample)
