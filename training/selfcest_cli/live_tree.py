"""An episode while it is played: its tree growing in a terminal, or a line per turn where there is none.

The game is looked at between what a policy is asked and what it answers, by a request that says which game it begins
and a policy around the one that plays: neither changes a thing, and a rollout knows nothing of it.
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
from selfcest_env.draw import short_name
from selfcest_env.errors import InfrastructureError
from selfcest_env.kernel import Kernel
from selfcest_env.palette import EDGE, INK, STATUS
from selfcest_env.record import Generation
from selfcest_env.render import Node, mark, nodes_of_kernel, shorten, turn_line
from selfcest_env.rules import Rules
from selfcest_env.types import ROOT, AgentId, Status, TurnKey

BAR = 8  # letters of the bar of what an agent has spent
WIDTH = 32  # of one text in the tree


@dataclass(frozen=True)
class LiveRequest(RolloutRequest):
    """An episode whose game `tree` is told of."""

    tree: LiveTree | None = None

    def begin(self, rules: Rules) -> tuple[Kernel, Mapping[tuple[AgentId, int], Generation]]:
        kernel, generations = super().begin(rules)
        if self.tree is not None:
            self.tree.begin(kernel)
        return kernel, generations


class LiveTree:
    """Shows one episode. A context manager: what it draws in a terminal is gone at its end.

    Args:
        console: where to. In a terminal the tree is drawn again at every turn, elsewhere a turn is a line.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._said = console, 0
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
            self.look()
        if self._live is not None:
            self._live.stop()

    def begin(self, kernel: Kernel) -> None:
        """The game to look at."""
        self._kernel = kernel
        if self._live is not None:
            self._live.update(tree_of(nodes_of_kernel(kernel)), refresh=True)

    def over(self, policy: Policy, codec: Codec | None = None) -> Policy:
        """A `player.Wrapper`: this policy, with a look at the game before everything that it is asked."""
        return _Looking(policy, self)

    def look(self) -> None:
        """Show what has been played since the last look."""
        if self._kernel is None or len(log := self._kernel.log) == self._said:
            return
        if self._live is not None:
            self._live.update(tree_of(nodes_of_kernel(self._kernel)), refresh=True)
        else:
            for step in log[self._said :]:
                facts = self._kernel.agents[step.agent_id].turns[step.turn]
                line = f"{step.agent_id} turn {step.turn}: {turn_line(facts)}"
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._said = len(log)


class _Looking:
    """A policy around which a tree is looked at; see `policy.Policy`."""

    def __init__(self, policy: Policy, tree: LiveTree) -> None:
        self._policy, self._tree = policy, tree

    def submit(self, requests: Sequence[PolicyRequest]) -> None:
        self._tree.look()
        self._policy.submit(requests)

    def poll(self) -> Sequence[tuple[TurnKey, Generation | InfrastructureError]]:
        self._tree.look()
        return self._policy.poll()


def tree_of(nodes: Sequence[Node]) -> RenderableType:
    """The tree as it stands, in the colours and marks of every picture, and what it has cost."""
    branches: dict[AgentId, Tree] = {}
    for node in nodes:
        line, parent = _line(node), node.agent_id.parent
        if parent is None:
            branches[node.agent_id] = Tree(line, guide_style=EDGE.light)
        else:
            branches[node.agent_id] = branches[parent].add(line)
    spent, clones = sum(node.spent for node in nodes), len(nodes) - 1
    foot = f"{spent:,} tokens, {clones} clone" + "s" * (clones != 1)
    return Group(branches[ROOT], Text(foot, "dim"))


def _line(node: Node) -> RenderableType:
    chip = f"{INK.light} on {STATUS[node.status].light}"
    share = min(1.0, node.spent / node.granted) if node.granted else 0.0
    granted = "" if node.granted is None else f"/{node.granted:,}"
    filled = min(BAR, round(share * BAR) + (0 < share < 0.5 / BAR))
    said = "" if node.reply is None else f" → {shorten(node.reply, WIDTH)}"
    row = Table.grid(padding=(0, 1))
    for _ in range(5):
        row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(
        Text(f" {mark(node.status)} {short_name(node.agent_id)} ", chip),
        Text("━" * filled) + Text("━" * (BAR - filled), EDGE.light + " dim"),
        Text(f"{node.spent:,}{granted}"),
        Text(shorten(node.objective, WIDTH), "dim") + Text(said, "bold not dim"),
        Spinner("dots") if node.status is Status.READY else "",
    )
    return row
