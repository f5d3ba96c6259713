"""An episode as text: the tree of agents with what each was asked, what it spent and how it ended.

The same lines are drawn from a running `Kernel` and from an `EpisodeRecord`. Texts that models wrote are shortened
visibly, or shown whole where that is asked for, and stripped of control characters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from selfcest_env.kernel import Kernel
from selfcest_env.palette import INK, STATUS
from selfcest_env.record import AgentRecord, ByTurn, EpisodeRecord
from selfcest_env.types import ROOT, AgentId, Outcome, Status, Task, TurnFacts

MARKS = {Status.ANSWERED: "✓", Status.WAITING: "…", Status.READY: "›", Status.ABSENT: "∅"}
FAILED_MARK = "✕"
WIDTH = 60  # characters of one quoted text


@dataclass(frozen=True, slots=True)
class Node:
    """What a picture shows of one agent. `spent` are tokens of its own, its clones' not included."""

    agent_id: AgentId
    objective: str
    status: Status
    granted: int | None
    spent: int
    turns: tuple[TurnFacts, ...]
    reply: str | None


def nodes_of_kernel(kernel: Kernel) -> list[Node]:
    """Agents of a running or finished game, in tree order."""
    return [
        Node(
            agent_id,
            state.brief.text,
            state.status,
            state.grant.total_tokens,
            kernel.ledger.accounts[agent_id].spent.total_tokens or 0,
            state.turns,
            state.reply,
        )
        for agent_id, state in sorted(kernel.agents.items())
    ]


def nodes_of_record(record: EpisodeRecord) -> list[Node]:
    """Agents of a recorded episode, in tree order."""
    return [
        Node(
            agent.agent_id,
            agent.objective,
            agent.status,
            agent.granted_tokens,
            agent.prompt_tokens + agent.generated_tokens,
            tuple(turn.facts for turn in agent.turns),
            agent.reply,
        )
        for agent in record.agents
    ]


def nodes_of_part(record: EpisodeRecord, played: Mapping[AgentId, int]) -> list[Node]:
    """Agents of a recorded episode as they stood when so many turns of each had been played, in tree order.

    Args:
        played: turns by agent; who is not in it has played none. They come to a moment that the episode has had.
    """
    nodes: dict[AgentId, Node] = {}
    ended = set[AgentId]()
    for agent in reversed(record.agents):  # children come after their parents in tree order
        done = played.get(agent.agent_id, 0)
        parent_id = agent.agent_id.parent
        turns = agent.turns[:done]
        if parent_id is not None and played.get(parent_id, 0) <= (agent.born_at or 0):
            continue  # not born yet
        last_children = turns[-1].facts.children if turns else ()
        joined = all(child in ended for child in last_children)
        over = joined and done == len(agent.turns)
        if over:
            ended.add(agent.agent_id)
        opened = agent.turns[: done + joined]  # the block before a turn is charged when the turn opens
        nodes[agent.agent_id] = Node(
            agent.agent_id,
            agent.objective,
            agent.status if over else Status.READY if joined else Status.WAITING,
            agent.granted_tokens,
            sum(turn.facts.prompt_tokens for turn in opened) + sum(turn.facts.generated_tokens for turn in turns),
            tuple(turn.facts for turn in turns),
            agent.reply if over else None,
        )
    return [nodes[agent.agent_id] for agent in record.agents if agent.agent_id in nodes]


def mark(status: Status) -> str:
    """Return the character that marks a status beside its colour."""
    return MARKS.get(status, FAILED_MARK)


def chip(status: Status) -> str:
    """A state's mark on its colour, for a terminal."""
    ink, fill = (";".join(map(str, tone.rgb)) for tone in (INK, STATUS[status]))
    return f"\x1b[38;2;{ink};48;2;{fill}m {mark(status)} \x1b[0m "


def render_kernel(
    kernel: Kernel, name: Callable[[AgentId], str] = str, width: int = WIDTH, *, chips: bool = False
) -> str:
    """A running game as text, with `chips` for a terminal that has colours."""
    described = _describe(name, width)

    def describe(node: Node) -> list[str]:
        head, *details = described(node)
        return [chip(node.status) * chips + head, *details]

    return "\n".join([_title(kernel.task, width), *branches(nodes_of_kernel(kernel), describe)])


def render_record(
    record: EpisodeRecord, name: Callable[[AgentId], str] = str, width: int = WIDTH, *, texts: bool = False
) -> str:
    """A recorded episode as text, with its cost and its reward.

    With `texts` nothing is shortened, and the documents that clones were given, what agents wrote at every turn, what
    reward terms give for it and the truth are shown too.
    """
    cost = record.cost
    task = record.task
    wrote = {agent.agent_id: agent for agent in record.agents} if texts else {}
    width = sys.maxsize if texts else width
    lines = [_title(task, width)]
    if texts and task.answer:  # a question of one's own may have none
        lines.append(f"truth {shorten(task.answer, width)}")
    lines += branches(nodes_of_record(record), _describe(name, width, wrote, task.context, record.by_turn))
    lines.append(
        f"cost: {cost.total_tokens} tokens ({cost.prompt_tokens} prompt, {cost.generated_tokens} generated), "
        f"critical path {cost.critical_path_tokens}, peak context {cost.peak_context}, {cost.clones} clones"
    )
    lines.append("reward: " + _reward(record))
    return "\n".join(lines)


def shorten(text: str, width: int = WIDTH) -> str:
    """`text` on one line, in quotes; whatever is left out is counted after an ellipsis."""
    line = one_line(text)
    if len(line) <= width:
        return f'"{line}"'
    return f'"{line[:width]}…" (+{len(line) - width} characters)'


def one_line(text: str) -> str:
    """`text` without line breaks and what no terminal should get."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _title(task: Task, width: int) -> str:
    return f"task {one_line(task.task_id)} from {one_line(task.source)}: {shorten(task.prompt, width)}"


def _reward(record: EpisodeRecord) -> str:
    if record.reward_terms is None:
        return "not scored"
    terms = []
    for name, value in record.reward_terms.items():
        weight = record.weights.get(name, 1.0)
        terms.append(("" if weight == 1 else f"{weight:g} x ") + f"{value:g} {one_line(name)}")
    return f"{record.team_return:g} = " + " + ".join(terms)


def branches(nodes: Sequence[Node], describe: Callable[[Node], Sequence[str]]) -> Iterator[str]:
    """The tree, a node per branch: the first line of its description beside the branch, the others below it.

    Args:
        nodes: in tree order.
        describe: one line or more about a node.
    """
    children: dict[AgentId, list[Node]] = {}
    for node in nodes:
        if node.agent_id.parent is not None:
            children.setdefault(node.agent_id.parent, []).append(node)
    stack = [(nodes[0], "", "")]
    while stack:
        node, first, rest = stack.pop()
        below = children.get(node.agent_id, [])
        stem = rest + ("│  " if below else "   ")
        head, *details = describe(node)
        yield first + head
        yield from (stem + line for line in details)
        for i, child in reversed(list(enumerate(below))):
            last = i == len(below) - 1
            stack.append((child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")))


def _describe(
    name: Callable[[AgentId], str],
    width: int,
    wrote: Mapping[AgentId, AgentRecord] = MappingProxyType({}),
    documents: Mapping[str, str] = MappingProxyType({}),
    by_turn: Mapping[str, ByTurn] = MappingProxyType({}),
) -> Callable[[Node], Sequence[str]]:
    def describe(node: Node) -> list[str]:
        lines = [f"{name(node.agent_id)}  {account(node)}"]
        if node.agent_id != ROOT:
            lines.append(f"asked {shorten(node.objective, width)}")
        agent = wrote.get(node.agent_id)
        if agent is not None:
            lines += [f"given {one_line(key)}: {one_line(documents[key])}" for key in agent.shared_context]
        for index, turn in enumerate(node.turns):
            lines.append(f"turn {index}: {turn_line(turn)}")
            if agent is not None:
                added = [(term, of[node.agent_id][index]) for term, of in by_turn.items() if node.agent_id in of]
                lines += [f"adds {value:g} {one_line(term)}" for term, value in added if value]
                lines += [f"> {one_line(line)}" for line in agent.turns[index].generation.text.splitlines()]
        if node.reply is not None:
            verb = "its parent was given" if node.status is Status.ABSENT else "replied"
            lines.append(f"{verb} {shorten(node.reply, width)}")
        return lines

    return describe


def account(node: Node) -> str:
    """Describe the status of an agent and the share of its grant that it has spent."""
    granted = "unlimited" if node.granted is None else str(node.granted)
    return f"{node.status}  {node.spent}/{granted} tokens"


def turn_line(turn: TurnFacts) -> str:
    """Describe the outcome and the tokens of a turn."""
    text = f"{turn.outcome}, {turn.prompt_tokens} prompt + {turn.generated_tokens} generated tokens"
    if turn.outcome is Outcome.DELEGATED:
        text += f", {len(turn.children)} born"
    if turn.fault is not None:
        text += f", {turn.fault}"
    for position, fault in sorted(turn.refused.items()):
        text += f", objective {position + 1} refused: {fault}"
    return text
