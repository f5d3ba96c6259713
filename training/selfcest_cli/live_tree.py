"""A live view of an episode: its tree grows in a terminal; any other output gets one line per turn.

A `LiveRequest` gives the episode's kernel to the view. A wrapper around the policy updates the view before every call.
Neither changes the episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from selfcest_agents.codec import Codec
from selfcest_agents.policy import Policy, PolicyRequest
from selfcest_agents.rollout import RolloutRequest
from selfcest_env.draw import format_short_id
from selfcest_env.errors import InfrastructureError
from selfcest_env.kernel import Kernel
from selfcest_env.palette import EDGE, INK, STATUS
from selfcest_env.record import Generation
from selfcest_env.render import Node, format_turn, nodes_of_kernel, shorten, status_mark
from selfcest_env.rules import Rules
from selfcest_env.types import ROOT, AgentId, Status, TurnKey
from selfcest_training.printing import print_text

BAR_WIDTH = 8  # of the bar of spent tokens, in characters
TEXT_WIDTH = 32  # of one quoted text, in characters


@dataclass(frozen=True)
class LiveRequest(RolloutRequest):
    """A request that shows its episode in `tree`."""

    tree: LiveTree | None = None

    def begin(self, rules: Rules) -> tuple[Kernel, Mapping[tuple[AgentId, int], Generation]]:
        kernel, generations = super().begin(rules)
        if self.tree is not None:
            self.tree.show(kernel)
        return kernel, generations


class LiveTree:
    """A context manager that shows one episode. At its end the tree is removed from the terminal.

    Args:
        console: a terminal, where the tree is drawn again at every turn, or another output, which gets a line per turn.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._num_shown = 0  # entries of the kernel's log that have been shown
        self._kernel: Kernel | None = None
        self._live = Live(console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> LiveTree:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.update()
        if self._live is not None:
            self._live.stop()

    def show(self, kernel: Kernel) -> None:
        """Show the episode of this kernel from now on."""
        self._kernel = kernel
        if self._live is not None:
            self._live.update(draw_tree(nodes_of_kernel(kernel)), refresh=True)

    def wrap(self, policy: Policy, codec: Codec | None = None) -> Policy:
        """Return the policy with an update of the view before each of its calls. See `player.PolicyWrapper`."""
        return _ObservedPolicy(policy, self)

    def update(self) -> None:
        """Show the steps since the last update."""
        if self._kernel is None:
            return
        log = self._kernel.log
        if len(log) == self._num_shown:
            return
        if self._live is not None:
            self._live.update(draw_tree(nodes_of_kernel(self._kernel)), refresh=True)
        else:
            for step in log[self._num_shown :]:
                facts = self._kernel.agents[step.agent_id].turns[step.turn]
                print_text(self._console, f"{step.agent_id} turn {step.turn}: {format_turn(facts)}")
        self._num_shown = len(log)


class _ObservedPolicy:
    """A `Policy` that updates a tree before each call."""

    def __init__(self, policy: Policy, tree: LiveTree) -> None:
        self._policy = policy
        self._tree = tree

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self._tree.update()
        self._policy.submit(requests)

    def poll(self) -> Sequence[tuple[TurnKey, Generation | InfrastructureError]]:
        self._tree.update()
        return self._policy.poll()


def draw_tree(nodes: Sequence[Node]) -> RenderableType:
    """Return the tree of an episode's agents with its cost. Colours and marks are those of the figures."""
    branches: dict[AgentId, Tree] = {}
    for node in nodes:
        row = _draw_row(node)
        parent = node.agent_id.parent
        if parent is None:
            branches[node.agent_id] = Tree(row, guide_style=EDGE.light)
        else:
            branches[node.agent_id] = branches[parent].add(row)
    num_tokens = sum(node.spent for node in nodes)
    num_clones = len(nodes) - 1
    cost = f"{num_tokens:,} tokens, {num_clones} clone" + "s" * (num_clones != 1)
    return Group(branches[ROOT], Text(cost, "dim"))


def _draw_row(node: Node) -> RenderableType:
    """Return an agent's row: mark and name, bar, tokens, objective with reply, and a spinner while it generates."""
    name_style = f"{INK.light} on {STATUS[node.status].light}"
    share = min(1.0, node.spent / node.granted) if node.granted else 0.0
    filled = round(share * BAR_WIDTH)
    if share > 0:
        filled = max(filled, 1)  # an agent that has spent anything has a visible bar
    granted = "" if node.granted is None else f"/{node.granted:,}"
    reply = "" if node.reply is None else f" → {shorten(node.reply, TEXT_WIDTH)}"
    row = Table.grid(padding=(0, 1))
    for _ in range(5):
        row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(
        Text(f" {status_mark(node.status)} {format_short_id(node.agent_id)} ", name_style),
        Text("━" * filled) + Text("━" * (BAR_WIDTH - filled), EDGE.light + " dim"),
        Text(f"{node.spent:,}{granted}"),
        Text(shorten(node.objective, TEXT_WIDTH), "dim") + Text(reply, "bold not dim"),
        Spinner("dots") if node.status is Status.READY else "",
    )
    return row
