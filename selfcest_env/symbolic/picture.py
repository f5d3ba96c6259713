"""Renders one symbolic episode as text or as an image, with the renderer of the text game."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from selfcest_env.draw import Image, draw
from selfcest_env.errors import GameError
from selfcest_env.render import Node, format_account, format_tree, status_chip
from selfcest_env.screen import Screen
from selfcest_env.symbolic.rules import SymbolicRules
from selfcest_env.symbolic.state import UNBORN, State, get_agent_ids
from selfcest_env.symbolic.vectors import get_answer, get_segments
from selfcest_env.types import Status

RENDER_MODES = ("human", "ansi", "rgb_array")

# The status of the text game by status code of `State`; `None` for UNBORN.
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
    """Return the agents of a batch of one, in tree order; an agent's objective is the segment that it holds now."""
    segments = get_segments(state, rules)[0]
    nodes = []
    for seat, agent_id in get_agent_ids(state).items():
        status = STATUSES[state.status[0, seat]]
        assert status is not None
        nodes.append(
            Node(
                agent_id,
                _symbols_text(segments[seat], rules),
                status,
                None if rules.total_tokens is None else int(state.granted[0, seat]),
                int(state.prompt_tokens[0, seat] + state.generated_tokens[0, seat]),
                (),
                _symbols_text(get_answer(state, rules, seat), rules) if status is Status.ANSWERED else None,
            )
        )
    return sorted(nodes, key=lambda node: node.agent_id)


def render(state: State, rules: SymbolicRules, mode: str | None, env: int = 0) -> str | Image | None:
    """Render the tree of one environment, with the right answer, which no agent observes.

    Returns:
        A text in the mode "ansi", an image in "rgb_array". `None` without a mode and in "human", which `show` serves.
    """
    if mode is None:
        return None
    state = state.take(np.array([env]))
    if state.status[0, 0] == UNBORN:
        raise GameError("no episode has been started; call reset() first")
    if mode == "rgb_array":
        return _render_image(state, rules)
    return _render_text(state, rules) if mode == "ansi" else None


def show(screen: Screen, state: State, rules: SymbolicRules) -> None:
    """Show the tree of a batch of one on a screen."""
    screen.show(partial(_render_image, state, rules), partial(_render_text, state, rules))


def _render_image(state: State, rules: SymbolicRules) -> Image:
    seats = {agent_id: seat for seat, agent_id in get_agent_ids(state).items()}
    return draw(nodes_of_state(state, rules), lambda agent_id: f"agent_{seats[agent_id]}")


def _render_text(state: State, rules: SymbolicRules, chips: bool = False) -> str:
    seats = {agent_id: seat for seat, agent_id in get_agent_ids(state).items()}

    def describe(node: Node) -> list[str]:
        seat = seats[node.agent_id]
        name = status_chip(node.status) * chips + f"agent_{seat}"
        lines = [f"{name}  {format_account(node)}, {state.turns[0, seat]} of {rules.max_turns} turns"]
        if node.objective:
            lines.append(f"holds {node.objective}")
        if node.reply is not None:
            lines.append(f"replied {node.reply}")
        return lines

    target = _symbols_text(state.target.reshape(-1), rules)
    title = f"{type(rules.task).__name__}, the answer is {target}, cycle {state.cycle[0]}"
    return "\n".join([title, *format_tree(nodes_of_state(state, rules), describe)])


def _symbols_text(symbols: NDArray[np.int8], rules: SymbolicRules) -> str:
    return " ".join("?" if symbol == rules.missing else str(symbol) for symbol in symbols if symbol != rules.pad)
