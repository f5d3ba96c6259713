"""Renders an episode as text: the tree of agents, each with its objective, its tokens, its turns and its reply.

A running `Kernel` and an `EpisodeRecord` give the same lines. Texts of models are shortened, unless the caller asks for
full texts, and control characters are removed.
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

MARKS = {Status.ANSWERED: "•", Status.WAITING: "…", Status.READY: "›", Status.ABSENT: "∅"}
FAILED_MARK = "✕"
# Marks of outcomes, which are judged by a grader. That an agent answered is its status.
OUTCOME_MARKS = {"right": "✓", "partly right": "◐", "wrong": "✕"}
WIDTH = 60  # characters of one quoted text


@dataclass(frozen=True, slots=True)
class Node:
    """The data about one agent that texts and images show.

    `spent` excludes the tokens of its clones. `outcome` is that of a finished episode, at its root; see `judge`.
    """

    agent_id: AgentId
    objective: str
    status: Status
    granted: int | None
    spent: int
    turns: tuple[TurnFacts, ...]
    reply: str | None
    outcome: str = ""


def judge(record: EpisodeRecord) -> str:
    """Return an episode's outcome, a key of `OUTCOME_MARKS`; "" without an answer or a reward term `correct`."""
    correct = (record.reward_terms or {}).get("correct")
    if correct is None or record.answer is None:
        return ""
    if 0 < correct < 1:
        return "partly right"
    return "right" if correct >= 1 else "wrong"


def nodes_of_kernel(kernel: Kernel) -> list[Node]:
    """Return the agents of a running or finished game, in tree order."""
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
    """Return the agents of a recorded episode, in tree order."""
    return [
        Node(
            agent.agent_id,
            agent.objective,
            agent.status,
            agent.granted_tokens,
            agent.prompt_tokens + agent.generated_tokens,
            tuple(turn.facts for turn in agent.turns),
            agent.reply,
            judge(record) if agent.agent_id == ROOT else "",
        )
        for agent in record.agents
    ]


def nodes_of_part(record: EpisodeRecord, played: Mapping[AgentId, int]) -> list[Node]:
    """Return the agents of a recorded episode at an earlier moment, in tree order.

    Args:
        record: the episode.
        played: turns played by each agent at a moment that occurred in the episode; 0 for agents that are left out.
    """
    nodes: dict[AgentId, Node] = {}
    ended = set[AgentId]()
    for agent in reversed(record.agents):  # children come after their parents in tree order
        num_played = played.get(agent.agent_id, 0)
        parent_id = agent.agent_id.parent
        turns = agent.turns[:num_played]
        if parent_id is not None and played.get(parent_id, 0) <= (agent.born_at or 0):
            continue  # not born yet
        last_children = turns[-1].facts.children if turns else ()
        joined = all(child in ended for child in last_children)
        has_ended = joined and num_played == len(agent.turns)
        if has_ended:
            ended.add(agent.agent_id)
        opened = agent.turns[: num_played + joined]  # the block before a turn is charged when the turn opens
        nodes[agent.agent_id] = Node(
            agent.agent_id,
            agent.objective,
            agent.status if has_ended else Status.READY if joined else Status.WAITING,
            agent.granted_tokens,
            sum(turn.facts.prompt_tokens for turn in opened) + sum(turn.facts.generated_tokens for turn in turns),
            tuple(turn.facts for turn in turns),
            agent.reply if has_ended else None,
            judge(record) if has_ended and parent_id is None else "",
        )
    return [nodes[agent.agent_id] for agent in record.agents if agent.agent_id in nodes]


def status_mark(status: Status) -> str:
    """Return the character that marks a status beside its colour."""
    return MARKS.get(status, FAILED_MARK)


def status_chip(status: Status) -> str:
    """Return a status's mark on its colour, for a terminal."""
    ink, fill = (";".join(map(str, tone.rgb)) for tone in (INK, STATUS[status]))
    return f"\x1b[38;2;{ink};48;2;{fill}m {status_mark(status)} \x1b[0m "


def render_kernel(
    kernel: Kernel, name: Callable[[AgentId], str] = str, width: int = WIDTH, *, chips: bool = False
) -> str:
    """Render a running game as text; `chips` adds the coloured marks of statuses, for a terminal."""
    describe_plain = _describe(name, width)

    def describe(node: Node) -> list[str]:
        head, *details = describe_plain(node)
        return [status_chip(node.status) * chips + head, *details]

    return "\n".join([_title(kernel.task, width), *format_tree(nodes_of_kernel(kernel), describe)])


def render_record(
    record: EpisodeRecord, name: Callable[[AgentId], str] = str, width: int = WIDTH, *, texts: bool = False
) -> str:
    """Render a recorded episode as text, with its cost and its reward.

    `texts` shows full texts, and adds the ground truth, the documents of clones, and the generation and the reward of
    every turn.
    """
    cost = record.cost
    task = record.task
    detailed = record.by_id if texts else {}
    width = sys.maxsize if texts else width
    lines = [_title(task, width)]
    if texts and task.answer:  # a user's own question may have none
        lines.append(f"truth {shorten(task.answer, width)}")
    lines += format_tree(nodes_of_record(record), _describe(name, width, detailed, task.context, record.by_turn))
    lines.append(
        f"cost: {cost.total_tokens} tokens ({cost.prompt_tokens} prompt, {cost.generated_tokens} generated), "
        f"critical path {cost.critical_path_tokens}, peak context {cost.peak_context}, {cost.clones} clones"
    )
    lines.append("reward: " + _format_reward(record))
    return "\n".join(lines)


def shorten(text: str, width: int = WIDTH) -> str:
    """Return a text on one line in quotes, cut after `width` characters with the number of those left out."""
    line = one_line(text)
    if len(line) <= width:
        return f'"{line}"'
    return f'"{line[:width]}…" (+{len(line) - width} characters)'


def one_line(text: str) -> str:
    """Return a text on one line, without unprintable characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _title(task: Task, width: int) -> str:
    return f"task {one_line(task.task_id)} from {one_line(task.source)}: {shorten(task.prompt, width)}"


def _format_reward(record: EpisodeRecord) -> str:
    if record.reward_terms is None:
        return "not scored"
    terms = []
    for name, value in record.reward_terms.items():
        weight = record.weights.get(name, 1.0)
        terms.append(("" if weight == 1 else f"{weight:g} x ") + f"{value:g} {one_line(name)}")
    outcome = judge(record)
    verdict = f", {OUTCOME_MARKS[outcome]} {outcome}" if outcome else ""
    return f"{record.team_return:g} = " + " + ".join(terms) + verdict


def format_tree(nodes: Sequence[Node], describe: Callable[[Node], Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a tree. The first line about a node stands beside its branch, and the others below it.

    Args:
        nodes: the nodes in tree order.
        describe: returns one or more lines about a node.
    """
    children: dict[AgentId, list[Node]] = {}
    for node in nodes:
        if node.agent_id.parent is not None:
            children.setdefault(node.agent_id.parent, []).append(node)
    stack = [(nodes[0], "", "")]  # node, prefix of its first line, prefix of its other lines
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
    detailed: Mapping[AgentId, AgentRecord] = MappingProxyType({}),
    documents: Mapping[str, str] = MappingProxyType({}),
    by_turn: Mapping[str, ByTurn] = MappingProxyType({}),
) -> Callable[[Node], Sequence[str]]:
    """Return a function that describes a node; the agents in `detailed` are shown with their full texts."""

    def describe(node: Node) -> list[str]:
        lines = [f"{name(node.agent_id)}  {format_account(node)}"]
        if node.agent_id != ROOT:
            lines.append(f"asked {shorten(node.objective, width)}")
        agent = detailed.get(node.agent_id)
        if agent is not None:
            lines += [f"given {one_line(key)}: {one_line(documents[key])}" for key in agent.shared_context]
        for index, turn in enumerate(node.turns):
            lines.append(f"turn {index}: {format_turn(turn)}")
            if agent is not None:
                for term, summands in by_turn.items():
                    if node.agent_id in summands and summands[node.agent_id][index]:
                        lines.append(f"adds {summands[node.agent_id][index]:g} {one_line(term)}")
                lines += [f"> {one_line(line)}" for line in agent.turns[index].generation.text.splitlines()]
        if node.reply is not None:
            verb = "its parent was given" if node.status is Status.ABSENT else "replied"
            lines.append(f"{verb} {shorten(node.reply, width)}")
        return lines

    return describe


def format_account(node: Node) -> str:
    """Describe the status of an agent and the share of its grant that it has spent."""
    granted = "unlimited" if node.granted is None else str(node.granted)
    return f"{node.status}  {node.spent}/{granted} tokens"


def format_turn(turn: TurnFacts) -> str:
    """Describe the outcome and the tokens of a turn."""
    text = f"{turn.outcome}, {turn.prompt_tokens} prompt + {turn.generated_tokens} generated tokens"
    if turn.outcome is Outcome.DELEGATED:
        text += f", {len(turn.children)} born"
    if turn.fault is not None:
        text += f", {turn.fault}"
    for position, fault in sorted(turn.refused.items()):
        text += f", objective {position + 1} refused: {fault}"
    return text
