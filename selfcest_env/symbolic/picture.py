"""One symbolic episode as text or as an image, by the hand that draws the text game."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from selfcest_env.draw import Image, draw
from selfcest_env.errors import GameError
from selfcest_env.render import Node, account, branches, chip
from selfcest_env.screen import Screen
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.state import UNBORN, State, get_agent_ids
from selfcest_env.symbolic.vectors import get_answer, get_segments
from selfcest_env.types import Status

RENDER_MODES = ("human", "ansi", "rgb_array")

# By code of `state`; nobody unborn has one.
STATUSES = (
    None,
    Status.READY,
    Status.WAITING,
    Status.ANSWERED,
    Status.OUT_OF_TURNS,
    Status.OUT_OF_TOKENS,
    Status.ABSENT,
)


def nodes_of_state(state: State, rules: SymbolicRules) -> list[Node]:
    """Agents of a batch of one, in tree order. The objective is what an agent that can act holds now."""
    held, nodes = get_segments(state, rules)[0], []
    for seat, agent_id in get_agent_ids(state).items():
        status = STATUSES[state.status[0, seat]]
        assert status is not None
        nodes.append(
            Node(
                agent_id,
                _symbols(held[seat], rules),
                status,
                None if rules.total_tokens is None else int(state.granted[0, seat]),
                int(state.prompt_tokens[0, seat] + state.generated_tokens[0, seat]),
                (),
                _symbols(get_answer(state, rules, seat), rules) if status is Status.ANSWERED else None,
            )
        )
    return sorted(nodes, key=lambda node: node.agent_id)


def render(state: State, rules: SymbolicRules, mode: str | None, env: int = 0) -> str | Image | None:
    """The tree of one environment: text in "ansi", an image in "rgb_array"; `None` in "human" (see `show`) and without
    a mode.

    It shows the right answer, which no agent sees.
    """
    if mode is None:
        return None
    state = state.take(np.array([env]))
    if state.status[0, 0] == UNBORN:
        raise GameError("no episode has been started; call reset() first")
    if mode == "rgb_array":
        return _picture(state, rules)
    return _text(state, rules) if mode == "ansi" else None


def show(screen: Screen, state: State, rules: SymbolicRules) -> None:
    """Show the tree of a batch of one to a person."""
    screen.show(partial(_picture, state, rules), partial(_text, state, rules))


def _picture(state: State, rules: SymbolicRules) -> Image:
    seats = {agent_id: seat for seat, agent_id in get_agent_ids(state).items()}
    return draw(nodes_of_state(state, rules), lambda agent_id: f"agent_{seats[agent_id]}")


def _text(state: State, rules: SymbolicRules, chips: bool = False) -> str:
    nodes, seats = nodes_of_state(state, rules), {agent_id: seat for seat, agent_id in get_agent_ids(state).items()}

    def describe(node: Node) -> list[str]:
        seat = seats[node.agent_id]
        head = chip(node.status) * chips + f"agent_{seat}"
        lines = [f"{head}  {account(node)}, {state.turns[0, seat]} of {rules.max_turns} turns"]
        if node.objective:
            lines.append(f"holds {node.objective}")
        if node.reply is not None:
            lines.append(f"replied {node.reply}")
        return lines

    right = _symbols(state.target.reshape(-1), rules)
    title = f"{type(rules.task).__name__}, the answer is {right}, cycle {state.cycle[0]}"
    return "\n".join([title, *branches(nodes, describe)])


def _symbols(symbols: NDArray[np.int8], rules: SymbolicRules) -> str:
    return " ".join("?" if symbol == rules.missing else str(symbol) for symbol in symbols if symbol != rules.pad)
