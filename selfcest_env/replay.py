"""Specifications of counterfactual episodes: a recorded episode in which some agents act otherwise.

A `Replay` is only a specification, so a credit scheme can request it without an environment or a policy. The module
`counterfactual` decides which turns it keeps, and `selfcest_agents.replay` plays it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from selfcest_env.errors import CreditError
from selfcest_env.types import ROOT, AgentId


@dataclass(frozen=True, slots=True, order=True)
class Intervention:
    """A change to one agent; made by `DEFAULT`, `RESAMPLE` and the constructors below.

    Attributes:
        kind: `default` leaves the agent out, without turns, cost or subtree, and its parent reads the default reply.
            `replace` does the same with the text `reply`. `resample` samples its turns from `turn` on again. `again`
            does so too, but from the random streams of turns after an intervention (`counterfactual.replay_seed`), as
            a control for the replays that share these streams.
        turn: the first turn that is not kept; 0 for an agent that is left out.
        reply: text that the parent reads, only for `replace`.
    """

    DEFAULT: ClassVar[Intervention]
    RESAMPLE: ClassVar[Intervention]

    kind: Literal["again", "default", "replace", "resample"]
    turn: int = 0
    reply: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("again", "default", "replace", "resample"):
            raise CreditError(
                f"intervention is {self.kind!r}; expected 'default', 'replace', 'resample' or 'again', as made by "
                "Intervention.DEFAULT, .replace(reply), .RESAMPLE, .resample(turn) or .again(turn)"
            )
        if type(self.reply) is not str or (self.reply and self.kind != "replace"):
            raise CreditError(f"intervention '{self.kind}' has the reply {self.reply!r}; only 'replace' takes a text")

    @classmethod
    def resample(cls, turn: int) -> Intervention:
        return cls("resample", turn)

    @classmethod
    def again(cls, turn: int) -> Intervention:
        return cls("again", turn)

    @classmethod
    def replace(cls, reply: str) -> Intervention:
        return cls("replace", reply=reply)

    @property
    def absent(self) -> bool:
        """Whether the agent is left out."""
        return self.kind in ("default", "replace")

    def __str__(self) -> str:
        if self.kind == "replace":  # a digest, because the text may contain any character of this notation
            return f"replace:{hashlib.blake2b(self.reply.encode(), digest_size=8).hexdigest()}"
        return self.kind + (f"@{self.turn}" if self.turn else "")


Intervention.DEFAULT = Intervention("default")
Intervention.RESAMPLE = Intervention("resample")


@dataclass(frozen=True, slots=True, order=True)
class Replay:
    """The specification of a counterfactual episode; prints as `e7/root.0=default,root.2=default/sample1`.

    Attributes:
        episode_id: id of the recorded episode, or of a replay (its `str`) for a replay of that replay.
        interventions: at least one change by agent, sorted by agent. No changed agent may descend from a turn that
            another change drops.
        sample: number of the draw. Replays that differ only in it are independent samples.

    Raises:
        CreditError: there is no intervention, there are two on one agent, the root is left out, or a turn or sample is
            negative.
    """

    episode_id: str
    interventions: tuple[tuple[AgentId, Intervention], ...]
    sample: int = 0

    def __post_init__(self) -> None:
        agents = [agent_id for agent_id, _ in self.interventions]
        if not agents:
            raise CreditError(f"replay {self} has no interventions; expected at least one")
        if agents != sorted(set(agents)):
            raise CreditError(f"replay {self}: expected agents in tree order, each once; build it with Replay.of")
        for agent_id, change in self.interventions:
            if not isinstance(change, Intervention):
                raise CreditError(f"replay of {self.episode_id}: {agent_id} has {change!r}; expected an Intervention")
            if agent_id == ROOT and change.absent:
                raise CreditError(f"replay {self}: the root has no parent to get a reply; resample it instead")
            if type(change.turn) is not int or change.turn < 0 or (change.absent and change.turn):
                expected = "0, as an absent agent takes none" if change.absent else "a whole number >= 0"
                raise CreditError(f"replay {self}: turn of {agent_id} is {change.turn!r}; expected {expected}")
        if type(self.sample) is not int or self.sample < 0:
            raise CreditError(f"replay {self}: sample is {self.sample!r}; expected a whole number >= 0")

    @property
    def is_nested(self) -> bool:
        """Whether it is a replay of a replay."""
        return replayed_episode(self.episode_id) is not None

    @classmethod
    def of(cls, episode_id: str, interventions: Mapping[AgentId, Intervention], sample: int = 0) -> Replay:
        return cls(episode_id, tuple(sorted(interventions.items())), sample)

    def __str__(self) -> str:
        agents = ",".join(f"{agent_id}={intervention}" for agent_id, intervention in self.interventions)
        return f"{self.episode_id}/{agents}/sample{self.sample}"


def replayed_episode(name: str) -> str | None:
    """Return the id of the episode or replay that a replay with this name replays; `None` for an episode's own id."""
    match = re.fullmatch(r"(.+)/[^/]+=[^/]+/sample\d+", name)
    return match[1] if match else None


def root_episode(name: str) -> str:
    """Return the id of the recorded episode behind a replay, or behind a replay of a replay."""
    replayed = replayed_episode(name)
    return name if replayed is None else root_episode(replayed)
