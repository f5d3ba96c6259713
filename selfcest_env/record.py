"""The record of an episode: frozen, and readable from and writable to JSON. Costs and returns are derived from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any
from warnings import warn

from selfcest_env.errors import RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.structure import structure, to_builtins
from selfcest_env.types import (
    ROOT,
    AgentId,
    FinishReason,
    Limits,
    Role,
    Status,
    Task,
    TurnFacts,
    TurnKey,
)


@dataclass(frozen=True)
class Generation:
    """The policy's data about one turn. Text-only policies leave the id fields empty and the temperature at 1.0.

    Attributes:
        text: the generated text that the game parsed.
        finish_reason: whether a stop or the length ended it.
        prompt_ids: ids that the environment appended just before this turn. The context of a turn is the concatenation
            of all earlier `prompt_ids` and `token_ids` and its own `prompt_ids`.
        token_ids: sampled ids, including the stop id if one was sampled.
        behavior_logprobs: log-prob of each id in `token_ids` under the distribution that it was sampled from, at
            `temperature`.
        temperature: sampling temperature.
        policy_version: version of the sampling weights.
        charged_tokens: generated tokens that a server reports, for text-only policies. `None`: the rules' counter
            prices the text.

    Example:
        >>> Generation("<ans>4<end>", FinishReason.STOP, (2, 9, 4), (12, 21, 13), (-0.1, -0.7, -0.01), 0.8, 3)
    """

    text: str
    finish_reason: FinishReason = FinishReason.STOP
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    behavior_logprobs: tuple[float, ...] = ()
    temperature: float = 1.0
    policy_version: int = 0
    charged_tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise RecordError(f"the text of a generation is {self.text!r}; expected a str")
        if type(self.text) is not str:  # `random.choice` of NumPy gives a `numpy.str_`, which cannot be read back
            object.__setattr__(self, "text", str(self.text))
        if len(self.behavior_logprobs) != len(self.token_ids):
            raise RecordError(
                f"a generation has {len(self.token_ids)} token ids and {len(self.behavior_logprobs)} "
                "behavior_logprobs; every sampled id needs the log-prob it was sampled with"
            )


@dataclass(frozen=True)
class Turn:
    """One turn: the facts that the game knows, and the generation of the policy."""

    facts: TurnFacts
    generation: Generation


# A number for each turn, by agent.
ByTurn = Mapping[AgentId, tuple[float, ...]]


@dataclass(frozen=True)
class AgentRecord:
    """Everything that one agent did. `born_at` is the index of the parent's turn that started it."""

    agent_id: AgentId
    objective: str
    shared_context: tuple[str, ...]
    granted_tokens: int | None
    born_at: int | None
    status: Status
    turns: tuple[Turn, ...]
    reply: str | None

    @property
    def parent_id(self) -> AgentId | None:
        return self.agent_id.parent

    @property
    def depth(self) -> int:
        return self.agent_id.depth

    @property
    def role(self) -> Role:
        return Role.ROOT if self.agent_id == ROOT else Role.CLONE

    @property
    def absent(self) -> bool:
        """Whether a replay leaves this clone out. It then has no turns and adds to no cost."""
        return self.status is Status.ABSENT

    @property
    def failed(self) -> bool:
        """Whether it played and gave no answer to its parent (the root: to the user)."""
        return self.status is not Status.ANSWERED and not self.absent

    # Most costs need these two, so each is summed once.
    @cached_property
    def prompt_tokens(self) -> int:
        return sum(turn.facts.prompt_tokens for turn in self.turns)

    @cached_property
    def generated_tokens(self) -> int:
        return sum(turn.facts.generated_tokens for turn in self.turns)

    @property
    def context_tokens(self) -> int:
        """Length of its context after its last turn."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def billed_tokens(self) -> int:
        return sum(accumulate(turn.facts.prompt_tokens + turn.facts.generated_tokens for turn in self.turns))

    @property
    def kv_token_steps(self) -> int:
        steps = 0
        context = 0
        for turn in self.turns:
            context += turn.facts.prompt_tokens
            new = turn.facts.generated_tokens
            # The i-th new token, from 0, attends to `context + i` tokens before it.
            steps += new * context + new * (new - 1) // 2
            context += new
        return steps

    @property
    def context_ids(self) -> tuple[int, ...]:
        """All prompt and sampled ids of its context, in order."""
        ids: list[int] = []
        for turn in self.turns:
            ids += turn.generation.prompt_ids
            ids += turn.generation.token_ids
        return tuple(ids)


@dataclass(frozen=True)
class Measure:
    """How a cost is computed from episodes.

    Attributes:
        of: returns the cost of one episode.
        over_samples: combines the costs of several episodes on one task that run in parallel: `sum` or `max`.
        in_series: combines them if each episode waits for the one before; by default as `over_samples`.
        compared: whether strategies are compared at equal values of this cost. Other costs are only reported.
    """

    of: Callable[[EpisodeRecord], float]
    over_samples: Callable[[Iterable[float]], float] = sum
    compared: bool = True
    in_series: Callable[[Iterable[float]], float] | None = None


def _measured(of: Callable[[EpisodeRecord], int], *arguments: Any, **options: Any) -> Any:
    """Return a dataclass field with its `Measure`, which takes the other arguments."""
    return field(metadata={"measure": Measure(of, *arguments, **options)})


@dataclass(frozen=True)
class Cost:
    """Costs of an episode, in tokens. A new cost needs only a new field.

    Attributes:
        total_tokens: prompts (each token counted once) and generations of the root and of every clone.
        prompt_tokens: part of `total_tokens` that the environment put into contexts.
        generated_tokens: part of `total_tokens` that the agents generated.
        critical_path_tokens: generated tokens that had to wait for each other. Of parallel clones only the longest
            counts.
        peak_context: longest context of any agent.
        billed_tokens: whole context and generated tokens of every turn, which a server without a prompt cache bills. A
            perfect prompt cache would lower the bill to `total_tokens`.
        kv_token_steps: length of the context before each generated token, summed: the keys and values that decoding
            reads, in tokens.
        clones: number of clones, without absent ones.
        turns: number of turns of all agents.
        depth: depth of the deepest clone, without absent ones.
    """

    total_tokens: int = _measured(lambda e: sum(agent.context_tokens for agent in e.agents))
    prompt_tokens: int = _measured(lambda e: sum(agent.prompt_tokens for agent in e.agents), compared=False)
    generated_tokens: int = _measured(lambda e: sum(agent.generated_tokens for agent in e.agents))
    critical_path_tokens: int = _measured(lambda e: e.critical_paths[ROOT], max, in_series=sum)
    peak_context: int = _measured(lambda e: max(agent.context_tokens for agent in e.agents), max)
    billed_tokens: int = _measured(lambda e: sum(agent.billed_tokens for agent in e.agents))
    kv_token_steps: int = _measured(lambda e: sum(agent.kv_token_steps for agent in e.agents))
    clones: int = _measured(lambda e: sum(not agent.absent for agent in e.agents) - 1, compared=False)
    turns: int = _measured(lambda e: sum(len(agent.turns) for agent in e.agents), compared=False)
    depth: int = _measured(lambda e: max(agent.depth for agent in e.agents if not agent.absent), max, compared=False)


def cost_measures() -> Mapping[str, Measure]:
    """Return the measure of each field of `Cost` by name, in order."""
    return _measures_of(Cost)


@cache
def _measures_of(cost: type[Cost]) -> Mapping[str, Measure]:
    return {item.name: item.metadata["measure"] for item in fields(cost)}


@dataclass(frozen=True)
class EpisodeRecord:
    """Everything that one episode produced. Agents are in tree order, whatever order they finished in.

    Attributes:
        reward_terms: unweighted values of the reward terms by name; `None` until the episode is scored.
        grade_note: the grader's reason why its score is only a lower bound, else empty.
        weights: weights of the terms at the training step that scored the episode; 1 for a term that is left out.
        parts: unweighted summands of terms that are sums over parts of the answer, by term and `Grade.parts` key.
        by_turn: unweighted summands of terms that are sums over turns, by term; agents that are left out add 0.
        prompt_variant: names of the variants around the protocol (`Rules.with_variant`), innermost first; `None` if
            unknown, in a record from before format 5. Its key in JSON is `wording`.
        train_group: id of the group that it was trained in, where a group filter joined several groups; else empty, and
            the episode's own id tells its group.
    """

    episode_id: str
    task: Task
    limits: Limits
    seed: int
    agents: tuple[AgentRecord, ...]
    reward_terms: Mapping[str, float] | None = None
    grade_note: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    by_turn: Mapping[str, ByTurn] = field(default_factory=dict)
    prompt_variant: tuple[str, ...] | None = ()
    train_group: str = ""

    @property
    def root(self) -> AgentRecord:
        return self.agents[0]

    @property
    def answer(self) -> str | None:
        return self.root.reply

    @property
    def team_return(self) -> float:
        """The weighted sum of the reward's terms."""
        if self.reward_terms is None:
            raise RecordError(f"episode {self.episode_id} has not been scored, so it has no team return")
        return sum(self.weights.get(name, 1.0) * value for name, value in self.reward_terms.items())

    @property
    def returns_by_part(self) -> dict[str, float]:
        """The weighted summand of each part of the answer by key; empty if the answer was judged as a whole."""
        returns: dict[str, float] = {}
        for name, summands in self.parts.items():
            for key, value in summands.items():
                returns[key] = returns.get(key, 0.0) + self.weights.get(name, 1.0) * value
        return returns

    @property
    def returns_by_turn(self) -> dict[TurnKey, float]:
        """The weighted summand of each turn, of terms that are sums over turns. A turn that adds 0 may be missing."""
        returns: dict[TurnKey, float] = {}
        for name, agents in self.by_turn.items():
            for agent_id, summands in agents.items():
                for turn, value in enumerate(summands):
                    key = TurnKey(self.episode_id, agent_id, turn)
                    returns[key] = returns.get(key, 0.0) + self.weights.get(name, 1.0) * value
        return returns

    @cached_property
    def by_id(self) -> Mapping[AgentId, AgentRecord]:
        return {agent.agent_id: agent for agent in self.agents}

    @cached_property
    def cost(self) -> Cost:
        values: Any = {name: measure.of(self) for name, measure in cost_measures().items()}
        return Cost(**values)

    def cost_of(self, name: str) -> Any:
        """Return one field of `cost`, without the work of the others."""
        return cost_measures()[name].of(self)

    def turns(self) -> Iterator[tuple[TurnKey, Turn]]:
        """Yield every turn with its key, in tree order."""
        for agent in self.agents:
            for index, turn in enumerate(agent.turns):
                yield TurnKey(self.episode_id, agent.agent_id, index), turn

    @cached_property
    def critical_paths(self) -> Mapping[AgentId, int]:
        """The generated tokens in each agent's subtree that had to wait for each other."""
        path_by_agent: dict[AgentId, int] = {}
        # The deepest agents come first, so the paths of an agent's clones are known. A recursion would end at Python's
        # limit in a tree of a thousand levels.
        for agent in sorted(self.agents, key=lambda agent: agent.agent_id.depth, reverse=True):
            tokens = 0
            for turn in agent.turns:
                # The clones of a call run in parallel, so the agent waits only for the longest one.
                clone_paths = [path_by_agent[child] for child in turn.facts.children]
                tokens += turn.facts.generated_tokens + max(clone_paths, default=0)
            path_by_agent[agent.agent_id] = tokens
        return path_by_agent


@dataclass(frozen=True)
class EpisodeGroup:
    """Episodes of one task: the unit of a group baseline."""

    task: Task
    episodes: tuple[EpisodeRecord, ...]

    def __post_init__(self) -> None:
        if not self.episodes:
            raise RecordError(f"the group of task {self.task.task_id} has no episode")
        for episode in self.episodes:
            if episode.task != self.task:
                raise RecordError(
                    f"episode {episode.episode_id} is of task {episode.task.task_id}, not {self.task.task_id}"
                )


def build_record(
    kernel: Kernel,
    generations: Mapping[tuple[AgentId, int], Generation],
    *,
    episode_id: str,
    seed: int,
) -> EpisodeRecord:
    """Return the record of a finished episode.

    Raises:
        RecordError: the episode has not ended, or a turn has no generation.
    """
    if not kernel.done:
        raise RecordError(f"episode {episode_id} has not ended; {', '.join(map(str, kernel.ready()))} may still act")
    agents = []
    for agent_id, state in sorted(kernel.agents.items()):
        missing = [turn for turn in range(len(state.turns)) if (agent_id, turn) not in generations]
        if missing:
            raise RecordError(f"episode {episode_id}: no generation for turns {missing} of {agent_id}")
        turns = tuple(Turn(facts, generations[agent_id, i]) for i, facts in enumerate(state.turns))
        agents.append(
            AgentRecord(
                agent_id,
                objective=state.brief.text,
                shared_context=state.shared_context,
                granted_tokens=state.grant.total_tokens,
                born_at=state.born_at,
                status=state.status,
                turns=turns,
                reply=state.reply,
            )
        )
    return EpisodeRecord(
        episode_id, kernel.task, kernel.limits, int(seed), tuple(agents), prompt_variant=kernel.rules.prompt_variant
    )


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# 2 added this number and `weights`; 3 `parts`; 4 `by_turn`; 5 `wording`; 6 `task.context_tokens`; 7 `train_group`
FORMAT = 7
_STORED_VARIANT = "wording"  # the key of `EpisodeRecord.prompt_variant` in stored records


def to_json(record: EpisodeRecord) -> dict[str, Any]:
    """Convert a record to JSON values, with the number of the earliest format that has all of them."""
    values: dict[str, Any] = to_builtins(record)
    values[_STORED_VARIANT] = values.pop("prompt_variant")  # behind the keys of earlier formats
    train_group = values.pop("train_group")
    if train_group:
        return {"format": FORMAT, **values, "train_group": train_group}
    if record.task.context_tokens is not None:
        return {"format": 6, **values}
    del values["task"]["context_tokens"]
    return {"format": 5, **values}


def from_json(data: Mapping[str, Any]) -> EpisodeRecord:
    """Read a record from JSON values; the inverse of `to_json`.

    Records of earlier formats are read too. All terms of a record of format 1 have weight 1, and the prompt variant of
    a record before format 5 is `None`.

    Raises:
        RecordError: a field is wrong, or the format is a later one.
    """
    values: object = data
    if isinstance(data, Mapping):  # `structure` refuses anything else
        values = {key: value for key, value in data.items() if key != "format"}
        number = data.get("format", 1)
        if number not in range(1, FORMAT + 1):
            raise RecordError(f"record.format is {number!r}; expected 1 to {FORMAT}; read it with a later version")
        if number < 5:
            values.setdefault(_STORED_VARIANT, None)
        if _STORED_VARIANT in values:
            values["prompt_variant"] = values.pop(_STORED_VARIANT)
    return structure(values, EpisodeRecord, place="record", error=RecordError)


def read_json_lines(path: Path, on_cut: Callable[[str], None] = warn) -> Iterator[tuple[int, Any]]:
    """Yield (line number, value) for each line of a JSON-lines file; see `read_lines_and_values`."""
    for number, _, value in read_lines_and_values(path, on_cut):
        yield number, value


def read_lines_and_values(path: Path, on_cut: Callable[[str], None] = warn) -> Iterator[tuple[int, bytes, Any]]:
    """Yield (line number, line, value) for each line of a JSON-lines file. Line numbers start at 1.

    A last line without its line break, which a crash or a full disk has cut, is skipped, and `on_cut` gets a message.
    Raises `RecordError` for any other line that is no JSON.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    on_cut(f"{path}, line {number}, was cut and is skipped")
                    return
                raise RecordError(f"{path}, line {number}: {error}") from error
            yield number, line, value


def read_episodes(path: Path, on_cut: Callable[[str], None] = warn) -> Iterator[EpisodeRecord]:
    """Yield the records of a JSON-lines file, one episode per line; `on_cut` as in `read_json_lines`.

    Raises `RecordError`, which names the line.
    """
    for number, value in read_json_lines(path, on_cut):
        try:
            yield from_json(value)
        except ValueError as error:
            raise RecordError(f"{path}, line {number}: {error}") from error


def write_episode(record: EpisodeRecord) -> str:
    """Return the record as one line of a JSON-lines file."""
    return format_json_line(to_json(record))


def format_json_line(data: Mapping[str, Any]) -> str:
    """Return a line of a JSON-lines file. A lone surrogate, which UTF-8 cannot encode, is written as an escape."""
    line = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", line) + "\n"
