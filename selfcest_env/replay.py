"""A counterfactual question about an episode: what would have come of it, had these agents done something else?

A `Replay` only names the question, so a credit scheme can ask it without holding the environment or the policy. Which
turns it keeps is decided by `counterfactual`, and it is played by `selfcest_agents.replay`.
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
    """What is done to one agent; made by `DEFAULT`, `RESAMPLE` and the constructors below.

    Attributes:
        kind: `default`: its reply is one fixed text; it generates nothing, is charged nothing, has no subtree.
            `replace`: the same with a text of the asker's. `resample`: its turns from `turn` on are sampled anew.
            `again`: they are, from the streams that everything after an intervention draws from, see
            `counterfactual.replay_seed`: the end of the episode once more, to be compared with other ends of it.
        turn: the first of its turns that is not kept; 0 where it is absent.
        reply: what its parent reads in its stead, for `replace`.
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
        if self.kind == "replace":  # a name for the text, which may hold anything
            return f"replace:{hashlib.blake2b(self.reply.encode(), digest_size=8).hexdigest()}"
        return self.kind + (f"@{self.turn}" if self.turn else "")


Intervention.DEFAULT = Intervention("default")
Intervention.RESAMPLE = Intervention("resample")


@dataclass(frozen=True, slots=True, order=True)
class Replay:
    """A replay to play, hashable; prints as `e7/root.0=default,root.2=default/sample1`.

    Attributes:
        episode_id: the factual episode; or a replay of it by its `str`, to ask what would have come of that one.
        interventions: what is done to whom, sorted by agent; at least one. What is done to one may not undo another's:
            no agent may be below, or born after the join of, a turn that is not kept.
        sample: replays that differ in it alone are independent draws of the same question.

    Raises:
        CreditError: no intervention, two on one agent, a reply in the root's stead, a turn or sample that is not >= 0.
    """

    episode_id: str
    interventions: tuple[tuple[AgentId, Intervention], ...]
    sample: int = 0

    def __post_init__(self) -> None:
        agents = [agent_id for agent_id, _ in self.interventions]
        if not agents:
            raise CreditError(f"replay {self} intervenes on nobody; name at least one agent")
        if agents != sorted(set(agents)):
            raise CreditError(f"replay {self}: expected agents in tree order, each once; build it with Replay.of")
        for agent_id, what in self.interventions:
            if not isinstance(what, Intervention):
                raise CreditError(f"replay of {self.episode_id}: {agent_id} has {what!r}; expected an Intervention")
            if agent_id == ROOT and what.absent:
                raise CreditError(f"replay {self}: the root has no parent to get a reply; resample it instead")
            if type(what.turn) is not int or what.turn < 0 or (what.absent and what.turn):
                expected = "0, as an absent agent takes none" if what.absent else "a whole number >= 0"
                raise CreditError(f"replay {self}: turn of {agent_id} is {what.turn!r}; expected {expected}")
        if type(self.sample) is not int or self.sample < 0:
            raise CreditError(f"replay {self}: sample is {self.sample!r}; expected a whole number >= 0")

    @property
    def is_second(self) -> bool:
        """Whether it is a replay of a replay."""
        return replayed_episode(self.episode_id) is not None

    @classmethod
    def of(cls, episode_id: str, interventions: Mapping[AgentId, Intervention], sample: int = 0) -> Replay:
        return cls(episode_id, tuple(sorted(interventions.items())), sample)

    def __str__(self) -> str:
        agents = ",".join(f"{agent_id}={intervention}" for agent_id, intervention in self.interventions)
        return f"{self.episode_id}/{agents}/sample{self.sample}"


def replayed_episode(name: str) -> str | None:
    """The id of what a record with this id is a replay of, `None` if it is an episode itself."""
    match = re.fullmatch(r"(.+)/[^/]+=[^/]+/sample\d+", name)
    return match[1] if match else None


def root_episode(name: str) -> str:
    """The id of the episode that a replay, or a replay of a replay, is of; an episode's own id."""
    while (of := replayed_episode(name)) is not None:
        name = of
    return name
