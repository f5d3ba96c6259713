"""`planner` lets a planning clone hand parts to clones with roles and revise its plan, after AgentOrchestra (Zhang et
al., arXiv 2506.12508). If it works, accuracy on tasks of several hops is above that of a single call.

docs/methods.md has what the paper leaves open and what was chosen here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.types import Action, Answer
from selfcest_methods.orchestrated import NOTHING, Asked, Orchestrated, call, lines_of

ROLES = {
    "researcher": "Find in your documents what is asked for.",
    "analyst": "Work out what is asked for, step by step.",
    "checker": "Check the claim, and say what is wrong with it.",
}

_NUMBERED = r"\s*(?:[0-9]+[.):]|[-*])?\s*"


@stored_as("selfcest_training.evaluation.planner:Planner", roles="roles", rounds="rounds", workers="workers")
@dataclass(frozen=True)
class Planner(Orchestrated, Checked):
    """A planner that is asked again after every round, over workers of several roles.

    Attributes:
        roles: the instruction of every role, by its name in small letters; `None`: `ROLES`.
        rounds: of a plan and its work; then the planner is asked for the answer.
        workers: of one round, at most.
    """

    roles: dict[str, str] | None = None
    rounds: Count = 2
    workers: Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = [name for name in self.instructions if not re.fullmatch(r"[a-z]+", name) or name == "done"]
        if not self.instructions or wrong:
            raise ConfigError(
                f"roles are {list(self.instructions)}; expected names in small letters, and none of them 'done'"
            )

    @property
    def instructions(self) -> dict[str, str]:
        return ROLES if self.roles is None else self.roles

    @property
    def turns(self) -> int:
        return 2 * self.rounds + 2

    @property
    def widest(self) -> int:
        return self.workers

    @property
    def clones(self) -> int:
        return self.rounds * (1 + self.workers) + 1

    def step(self, task: str, keys: tuple[str, ...], past: Sequence[Asked]) -> Action:
        if not len(past) % 2:
            return self._plan(task, past)
        said = past[-1].replies[0]
        jobs = self.jobs(said)
        if len(past) > 2 * self.rounds or not jobs:
            return Answer(self.done(said) or self.found(past) or NOTHING)
        return call(*(f"{self.instructions[role]}\n{part}" for role, part in jobs), keys=keys)

    def found(self, past: Sequence[Asked]) -> str | None:
        work = [reply for call in past[1::2] for reply in call.replies if reply is not None]
        return work[-1] if work else None

    def jobs(self, plan: str | None) -> list[tuple[str, str]]:
        """Roles and parts of a plan; none if it is done or cannot be read."""
        split = [line.partition(":") for line in lines_of(self._plain(plan), rf"\n|;(?={self._head})")]
        named = [(role.strip().lower(), part.strip()) for role, _, part in split]
        if any(role == "done" for role, _ in named):
            return []
        return [(role, part) for role, part in named if role in self.instructions and part][: self.workers]

    def done(self, plan: str | None) -> str | None:
        """What a plan says is the answer, up to a line that plans on; `None` if it says none."""
        _, *after = re.split(rf"(?:^|[\n;]){_NUMBERED}done\s*:", self._plain(plan), maxsplit=1, flags=re.I)
        return re.split(rf"\n{self._head}", after[0], maxsplit=1)[0].strip() or None if after else None

    def readable(self, past: Sequence[Asked]) -> bool:
        plans = [call.replies[0] for call in past[::2]]
        return all(self.jobs(plan) or self.done(plan) for plan in plans)

    @property
    def _names(self) -> str:
        return "|".join((*self.instructions, "done"))

    @property
    def _head(self) -> str:
        """A pattern of what a line of a plan begins with."""
        return rf"(?i:{_NUMBERED}(?:{self._names})\s*:)"

    def _plain(self, plan: str | None) -> str:
        """A plan whose lines begin without emphasis: models write `**Analyst**:` and `**Analyst:**`."""
        bold = rf"((?:^|[\n;]){_NUMBERED})(?<!\*)(\*{{1,2}})({self._names})(?:\2\s*:|:\2)"
        return re.sub(bold, r"\1\3:", plan or "", flags=re.I)

    def _plan(self, task: str, past: Sequence[Asked]) -> Action:
        known = [
            f"{role}: {part} -> {reply or NOTHING}"
            for plan, work in zip(past[::2], past[1::2], strict=False)
            for (role, part), reply in zip(self.jobs(plan.replies[0]), work.replies, strict=False)
        ]
        if len(past) == 2 * self.rounds:
            order = "Write the answer, on a line 'done: ANSWER'."
        else:
            order = (
                f"Write what to do next, at most {self.workers} lines 'ROLE: PART' that can be worked on side by side, "
                f"with a role of {', '.join(self.instructions)}. If you know the answer, write one line 'done: ANSWER'."
            )
        return call(
            "\n".join(["You plan and do not solve.", order, f"Task: {task}", "Found so far:", *(known or ["nothing"])])
        )
