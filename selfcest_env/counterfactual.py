"""Other pasts of an episode: as it stood before some turns, and as it would have begun under a `Replay`.

A replay keeps every turn that is not a turn it intervenes on (an agent's first one, unless it names a later one), nor a
descendant of one: an agent's later turns, what its subtree did from then on, its ancestors' turns after the join and
whatever those spawn. An agent in whose stead a reply is given is *absent*: its call grants its siblings what it granted
them, its own grant never leaves the parent, nothing is charged for it and no cost counts it; its parent reads that
reply, by default what stands for a failed clone (`tree.reply_of`).
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
    """The episode as it stood without these turns and all that came of them.

    Every recorded step that descends from none of them is kept: siblings' steps are, the ancestors' turns after the
    join are not. Accounts are nested, so what is kept is the same in every interleaving, and the ledger is the one in
    force when those turns were opened.

    Args:
        turns: (agent, turn) of the episode, played or open.
        absent: agents to leave out besides, with their replies as in `Kernel`; their first turns are among `turns`.

    Raises:
        GameError: the episode has no such turn.
    """
    for agent_id, turn in turns:
        state = kernel.agents.get(agent_id)
        if state is None or not 0 <= turn < len(state.turns) + (state.turn is not None):
            raise GameError(f"cannot fork before {agent_id}/turn{turn}: the episode has no such turn")
    other = Kernel(kernel.task, kernel.rules, kernel.absent | dict(absent or {}))
    for step in kernel.log:
        if not any(is_descendant(kernel.agents, (step.agent_id, step.turn), turn) for turn in turns):
            other.step(step.agent_id, step.action, step.usage, step.text)
    return other


def restore(record: EpisodeRecord, rules: Rules) -> Kernel:
    """The finished kernel of a record, played again from what its agents wrote.

    Raises:
        RecordError: the episode was played with another prompt variant, or by these rules its texts make another one.
    """
    *_, kernel = replay_turns(record, rules)
    return kernel


def replay_turns(
    record: EpisodeRecord, rules: Rules, choose: Callable[[Kernel], AgentId] = lambda kernel: kernel.ready()[0]
) -> Iterator[Kernel]:
    """The kernel of a record as its turns are played again: at its beginning, and after every turn.

    It is the same object every time.

    Args:
        choose: whose turn is next, of those that are ready.

    Raises:
        RecordError: as `restore`, before the turn after which that shows.
    """
    if record.prompt_variant is not None:
        played = tuple(map(short_name, record.prompt_variant))  # a record may have a long name written out
        if rules.prompt_variant != played:
            raise RecordError(
                f"episode {record.episode_id} was played with {_said(played)}, and these rules have "
                f"{_said(rules.prompt_variant)}; pass those of its protocol, as "
                "rules.with_variant(...) makes them"
            )
    turns = {(key.agent_id, key.turn): turn for key, turn in record.turns()}
    kernel = Kernel(record.task, rules, {agent.agent_id: agent.reply for agent in record.agents if agent.absent})
    yield kernel
    while not kernel.done:
        agent_id = choose(kernel)
        turn = turns.get((agent_id, len(kernel.agents[agent_id].turns)))
        if turn is None:
            break
        facts, text = turn.facts, turn.generation.text
        # What was dropped for being over the grant must be over it again.
        used = facts.generated_tokens + (facts.fault is Fault.OVER_GRANT)
        kernel.play(agent_id, text, Usage(used, facts.finish_reason))
        if kernel.agents[agent_id].turns[-1] != facts:
            break
        yield kernel
    if not _same(kernel, record):
        raise RecordError(
            f"episode {record.episode_id} cannot be restored: by these rules its texts make another episode; pass the "
            "limits, the protocol and the token counter it was played with"
            + ("" if record.prompt_variant is not None else ", with the prompt variant that it does not name")
        )


def _said(prompt_variant: tuple[str, ...]) -> str:
    return f"the prompt variant {' and '.join(prompt_variant)}" if prompt_variant else "no prompt variant"


def _same(kernel: Kernel, record: EpisodeRecord) -> bool:
    """Whether an episode was played by these limits and came to what is recorded."""
    recorded = {a.agent_id: (a.granted_tokens, a.status, a.reply, [t.facts for t in a.turns]) for a in record.agents}
    played = {
        agent_id: (state.grant.total_tokens, state.status, state.reply, list(state.turns))
        for agent_id, state in kernel.agents.items()
    }
    return kernel.limits == record.limits and played == recorded


def check_replay(replay: Replay, record: EpisodeRecord) -> None:
    """Raises `CreditError` for a turn that the episode lacks, or two interventions of which one undoes the other."""
    starts = [(agent_id, what.turn) for agent_id, what in replay.interventions]
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
                (agent_id, turn), (before, first) = start, other
                raise CreditError(
                    f"replay {replay}: {agent_id}/turn{turn} descends from {before}/turn{first}, so it need not exist "
                    f"once {before} is intervened on; ask for two replays"
                )


def is_replayed_turn(replay: Replay, record: EpisodeRecord, agent_id: AgentId, turn: int) -> bool:
    """Whether a turn of a replay's record was played for it; the others are the episode's own."""
    starts = ((other, what.turn) for other, what in replay.interventions)
    return any(is_descendant(record.by_id, (agent_id, turn), start) for start in starts)


def start_replay(replay: Replay, kernel: Kernel) -> Kernel:
    """How a replay begins: the finished `kernel` of its episode without what descends from the interventions.

    Raises:
        CreditError: a reply that is put in has more than `reply_tokens`, which no clone could have sent.
    """
    absent: dict[AgentId, str | None] = {}
    for agent_id, what in replay.interventions:
        if what.absent:
            absent[agent_id] = what.reply if what.kind == "replace" else None
            text = kernel.rules.protocol.neutralise(what.reply)  # as a clone's own is priced
            bound, tokens = kernel.limits.reply_tokens, kernel.rules.counter.count_text(text)
            if bound is not None and tokens > bound:
                raise CreditError(
                    f"replay {replay}: the reply for {agent_id} has {tokens} tokens, over reply_tokens = {bound}"
                )
    return fork_before(kernel, *((agent_id, what.turn) for agent_id, what in replay.interventions), absent=absent)


def replay_seed(replay: Replay, seed: int, agent_id: AgentId, turn: int) -> int:
    """Stream of a turn that a replay plays anew; `seed` is the episode's.

    Turns of a resampled agent and of its subtree draw from streams of kind "resample", all others of kind "after".
    Neither is ever the factual stream, and both are new for every sample; equal samples of different questions about
    one episode share the streams "after", as common random numbers. Replays of a replay share none with it.
    """
    resampled = any(agent_id.is_under(other) and what.kind == "resample" for other, what in replay.interventions)
    kind = ("resample" if resampled else "after") + (f" in {replay.episode_id}" if replay.is_second else "")
    return turn_seed(seed, agent_id, turn, kind, replay.sample)
