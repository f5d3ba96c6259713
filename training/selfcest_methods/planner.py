"""`planner` has a planning clone hand parts to clones with roles, and revise its plan after every round.

Source: AgentOrchestra (Zhang et al., arXiv 2506.12508, from the abstract). In the paper the workers are agents with
different tools. Here a role is an instruction to the same weights, and the tools are those of the game. Details:
docs/methods.md.

Expected effect: on tasks of several hops, accuracy above that of a single call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from selfcest_env.errors import ConfigError
from selfcest_env.stored import stored_as
from selfcest_env.structure import Checked, Count
from selfcest_env.types import Action, Answer
from selfcest_methods.orchestrated import NO_ANSWER, JoinedCall, OrchestratedStrategy, make_call, split_lines

ROLES = {
    "researcher": "Find in your documents what is asked for.",
    "analyst": "Work out what is asked for, step by step.",
    "checker": "Check the claim, and say what is wrong with it.",
}

_LIST_MARK = r"\s*(?:[0-9]+[.):]|[-*])?\s*"


@stored_as("selfcest_training.evaluation.planner:Planner", roles="roles", rounds="rounds", workers="workers")
@dataclass(frozen=True)
class Planner(OrchestratedStrategy, Checked):
    """Each round is a call to the planner and a call to its workers. A last call asks the planner for the answer.

    A plan has lines `ROLE: PART`, or a line `done: ANSWER` that ends the planning.

    Attributes:
        roles: instruction of each role by its name, in small letters; `None` for `ROLES`.
        rounds: largest number of rounds.
        workers: largest number of workers in a round.
    """

    roles: dict[str, str] | None = None
    rounds: Count = 2
    workers: Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        bad_names = [name for name in self.instructions if not re.fullmatch(r"[a-z]+", name) or name == "done"]
        if not self.instructions or bad_names:
            raise ConfigError(
                f"roles are {list(self.instructions)}; expected names in small letters, and none of them 'done'"
            )

    @property
    def instructions(self) -> dict[str, str]:
        return ROLES if self.roles is None else self.roles

    @property
    def script_turns(self) -> int:
        return 2 * self.rounds + 2

    @property
    def max_call_size(self) -> int:
        return self.workers

    @property
    def max_script_clones(self) -> int:
        return self.rounds * (1 + self.workers) + 1

    def next_action(self, task: str, keys: tuple[str, ...], calls: Sequence[JoinedCall]) -> Action:
        # Calls alternate: one to the planner, one to its workers.
        if len(calls) % 2 == 0:
            return self._ask_for_plan(task, calls)
        plan = calls[-1].replies[0]
        jobs = self.parse_jobs(plan)
        # After the last round the planner was asked for the answer, so jobs in its reply are ignored.
        if len(calls) > 2 * self.rounds or not jobs:
            return Answer(self.parse_answer(plan) or self.best_answer(calls) or NO_ANSWER)
        return make_call(*(f"{self.instructions[role]}\n{part}" for role, part in jobs), keys=keys)

    def best_answer(self, calls: Sequence[JoinedCall]) -> str | None:
        """Return the last reply of a worker."""
        for call in reversed(calls[1::2]):
            for reply in reversed(call.replies):
                if reply is not None:
                    return reply
        return None

    def parse_jobs(self, plan: str | None) -> list[tuple[str, str]]:
        """Return the role and the part of each line of a plan; nothing for a plan that is done or unreadable."""
        jobs = []
        for line in split_lines(self._strip_emphasis(plan), rf"\n|;(?={self._line_head})"):
            name, _, part = line.partition(":")
            role = name.strip().lower()
            if role == "done":
                return []
            if role in self.instructions and part.strip():
                jobs.append((role, part.strip()))
        return jobs[: self.workers]

    def parse_answer(self, plan: str | None) -> str | None:
        """Return the answer of a plan, which ends where another line of the plan begins; `None` if it has none."""
        text = self._strip_emphasis(plan)
        done_line = re.search(rf"(?:^|[\n;]){_LIST_MARK}done\s*:", text, flags=re.I)
        if done_line is None:
            return None
        answer = re.split(rf"\n{self._line_head}", text[done_line.end() :], maxsplit=1)[0]
        return answer.strip() or None

    def is_readable(self, calls: Sequence[JoinedCall]) -> bool:
        plans = [call.replies[0] for call in calls[::2]]
        return all(self.parse_jobs(plan) or self.parse_answer(plan) for plan in plans)

    @property
    def _names(self) -> str:
        """A pattern of the names that a line of a plan may begin with."""
        return "|".join((*self.instructions, "done"))

    @property
    def _line_head(self) -> str:
        """A pattern of the beginning of a line of a plan."""
        return rf"(?i:{_LIST_MARK}(?:{self._names})\s*:)"

    def _strip_emphasis(self, plan: str | None) -> str:
        """Return a plan without the emphasis of role names: models write `**Analyst**:` and `**Analyst:**`."""
        # The colon stands inside or outside the emphasis. Without the lookbehind the first of two asterisks could count
        # as a list mark.
        bold = rf"((?:^|[\n;]){_LIST_MARK})(?<!\*)(\*{{1,2}})({self._names})(?:\2\s*:|:\2)"
        return re.sub(bold, r"\1\3:", plan or "", flags=re.I)

    def _ask_for_plan(self, task: str, calls: Sequence[JoinedCall]) -> Action:
        results = []
        for plan, work in zip(calls[::2], calls[1::2], strict=True):
            for (role, part), reply in zip(self.parse_jobs(plan.replies[0]), work.replies, strict=False):
                results.append(f"{role}: {part} -> {reply or NO_ANSWER}")
        if len(calls) == 2 * self.rounds:
            order = "Write the answer, on a line 'done: ANSWER'."
        else:
            order = (
                f"Write what to do next, at most {self.workers} lines 'ROLE: PART' that can be worked on side by side, "
                f"with a role of {', '.join(self.instructions)}. If you know the answer, write one line 'done: ANSWER'."
            )
        lines = ["You plan and do not solve.", order, f"Task: {task}", "Found so far:", *(results or ["nothing"])]
        return make_call("\n".join(lines))
