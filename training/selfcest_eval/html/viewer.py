"""The page of `selfcest trace --html`: a list of episodes, and everything about the chosen one.

Texts, tasks and limits that many episodes share are in the page once. The page parses an episode when it shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from selfcest_env.errors import RecordError
from selfcest_env.record import AgentRecord, EpisodeRecord, Turn
from selfcest_env.render import judge
from selfcest_env.replay import replayed_episode
from selfcest_env.types import Message, TurnKey
from selfcest_eval.html.page import Page, read_asset, round_number
from selfcest_eval.html.playing import (
    LedgerChange,
    Renderer,
    ReplayedEpisode,
    TurnPlace,
    replay_episode,
)
from selfcest_training.credit.base import Credit


@dataclass(frozen=True)
class EpisodeView:
    """An episode to show.

    Attributes:
        record: the episode.
        right: whether a study's grader found its answer right; `None`: its reward tells.
        played_as: the strategy and eval set of a study, or the name of its file if there are several.
        file: the number of its file. Episode ids are unique in a file only.
        job: the name of its file among several, and the strategy and budget of a study. Groups of two jobs are apart.
    """

    record: EpisodeRecord
    right: bool | None = None
    played_as: str = ""
    file: int = 0
    job: str = ""

    @property
    def key(self) -> tuple[int, str]:
        return self.file, self.record.episode_id

    @property
    def outcome(self) -> str:
        """The outcome of its answer, as in `render.judge`."""
        if self.right is None or self.record.answer is None:
            return judge(self.record)
        return "right" if self.right else "wrong"

    def _repr_html_(self) -> str:
        """Return the tree as a figure for a notebook."""
        from selfcest_eval.html.figure import draw_svg  # imports matplotlib

        return draw_svg(self.record, self.outcome)


@dataclass(frozen=True)
class SchemeCredit:
    """The credit of one scheme.

    Attributes:
        name, formula: of the scheme.
        credits: by file, the credit of each group; empty for a file for which it cannot be computed.
    """

    name: str
    formula: str
    credits: Sequence[Sequence[Credit]]


COLUMNS = (
    "name", "outcome", "family", "size", "clones", "tokens", "critical", "return", "prompt", "of", "played_as", "job",
    "step", "group", "troubles", "task",
)  # fmt: skip
# The id of an episode of a training run: its step, its group and its number in the group.
_EPISODE_ID = re.compile(r"s(\d+)\.(.+)\.e\d+")


def make_viewer_page(
    title: str,
    shown: Sequence[EpisodeView],
    renderers: Sequence[Renderer],
    schemes: Sequence[SchemeCredit],
    left_out: Sequence[str] = (),
) -> Page:
    """Return the page.

    Args:
        title: of the page.
        shown: the episodes and their replays, in the order of the list.
        renderers: see `playing.replay_episode`.
        schemes: credit to show side by side.
        left_out: requested credit that is not shown: a line each with the scheme, the file and the reason.

    Raises:
        RecordError: there is no episode.
    """
    if not shown:
        raise RecordError("there is no episode to show")
    builder = PageBuilder(renderers, schemes, {view.key: number for number, view in enumerate(shown)})
    # Their order decides the numbers of texts in the page.
    episodes = [builder.make_episode(number, view) for number, view in enumerate(shown)]
    rows = [builder.make_row(name, view) for name, view in zip(_make_unique_names(shown), shown, strict=True)]
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return Page(
        title,
        read_asset("viewer.html"),
        styles=("viewer.css",),
        scripts=(
            "viewer.js",
            "viewer_tree.js",
            "viewer_numbers.js",
            "viewer_texts.js",
            "viewer_beside.js",
            "viewer_start.js",
        ),
        data={
            "index": columns,
            "schemes": [
                {"name": scheme.name, "formula": scheme.formula, "by_token": _has_token_credit(scheme)}
                for scheme in schemes
            ],
            "has_logprobs": any(_has_logprobs(view.record) for view in shown),
            "left_out": list(left_out),
            "limits": list(builder.limits),
        },
        lines={"episodes": episodes, "tasks": list(builder.tasks), "texts": list(builder.texts)},
    )


def _has_token_credit(scheme: SchemeCredit) -> bool:
    credits = chain.from_iterable(scheme.credits)
    return any(isinstance(value, tuple) for credit in credits for value in credit.advantage.values())


def _has_logprobs(record: EpisodeRecord) -> bool:
    return any(turn.generation.behavior_logprobs for _, turn in record.turns())


def _make_unique_names(shown: Sequence[EpisodeView]) -> list[str]:
    """Return the ids of episodes, with a number where an episode before has the same id.

    Half a surrogate pair, which no address can hold, is a question mark.
    """
    counts: dict[str, int] = {}
    names = []
    for view in shown:
        name = view.record.episode_id.encode("utf-8", "replace").decode()
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name}~{counts[name]}")
    return names


class _ValueTable:
    """Values that are stored once, each under a number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def add(self, key: object, value: object) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._values)
            self._values.append(value)
        return self._numbers[key]


@dataclass
class PageBuilder:
    """Builds the JSON values of episodes, and the tables that they share.

    Attributes:
        renderers: see `playing.replay_episode`.
        schemes: credit to show.
        numbers: of all episodes, by file and id.
        texts, tasks, limits: the shared values.
    """

    renderers: Sequence[Renderer]
    schemes: Sequence[SchemeCredit]
    numbers: Mapping[tuple[int, str], int]
    texts: _ValueTable = field(default_factory=_ValueTable)
    tasks: _ValueTable = field(default_factory=_ValueTable)
    limits: _ValueTable = field(default_factory=_ValueTable)

    def __post_init__(self) -> None:
        # By scheme: the advantage of each turn or its tokens, or "excluded", and the weight of each turn.
        self._advantages: list[dict[tuple[int, TurnKey], Any]] = [{} for _ in self.schemes]
        self._weights: list[dict[tuple[int, TurnKey], float]] = [{} for _ in self.schemes]
        for advantages, weights, scheme in zip(self._advantages, self._weights, self.schemes, strict=True):
            for file, credits in enumerate(scheme.credits):
                for credit in credits:
                    advantages |= {(file, key): _round_numbers(value) for key, value in credit.advantage.items()}
                    advantages |= {(file, key): "excluded" for key in credit.excluded}
                    weights |= {(file, key): value for key, value in credit.weight.items()}
        self._token_texts: dict[tuple[int, int], str] = {}  # by the renderer's identity and the token's id
        self._replays: dict[int, list[int]] = {}
        for (file, name), number in self.numbers.items():
            original = self._find_original(file, name)
            if original is not None:
                self._replays.setdefault(original, []).append(number)

    def _find_original(self, file: int, episode_id: str) -> int | None:
        """Return the number of the episode that this episode replays; `None`: it is no replay, or not shown."""
        original_id = replayed_episode(episode_id)
        return None if original_id is None else self.numbers.get((file, original_id))

    def add_text(self, text: str, is_trusted: bool = False) -> int:
        """Return the number of a text; a trusted text is from this project, and not from a model or a task."""
        return self.texts.add((text, is_trusted), [text, 1] if is_trusted else [text])

    def make_row(self, name: str, view: EpisodeView) -> tuple[Any, ...]:
        """Return the fields of `COLUMNS`."""
        record = view.record
        cost = record.cost
        metadata = record.task.metadata
        return (
            name,
            _get_outcome(view),
            str(metadata.get("family", record.task.source)),
            str(metadata.get("size", "")),
            cost.clones,
            cost.total_tokens,
            cost.critical_path_tokens,
            None if record.reward_terms is None else round_number(record.team_return),
            self.add_text(record.task.prompt),
            self._find_original(view.file, record.episode_id),
            view.played_as,
            view.job,
            *_find_group(view),
            _list_troubles(record),
            self._add_task(record),
        )

    def make_episode(self, number: int, view: EpisodeView) -> dict[str, Any]:
        record = view.record
        replayed = replay_episode(record, self.renderers)
        if replayed.renderer is not None and replayed.renderer is not self.renderers[0]:
            # The next episode was probably played by the same rules, so they are tried first.
            self.renderers = sorted(self.renderers, key=lambda renderer: renderer is not replayed.renderer)
        terms = None
        if record.reward_terms is not None:
            terms = []
            for name, value in record.reward_terms.items():
                terms.append([name, round_number(value), round_number(record.weights.get(name, 1.0))])
        return {
            "task": self._add_task(record),
            "limits": self.limits.add(record.limits, asdict(record.limits)),
            "note": record.grade_note,
            "terms": terms,
            "parts": {key: round_number(value) for key, value in record.returns_by_part.items()},
            "cost": {name: round_number(value) for name, value in asdict(record.cost).items()},
            "exact": replayed.renderer is not None,
            "agents": [self._make_agent(view, agent, replayed) for agent in record.agents],
            "ledger": _make_ledger(record, replayed.ledger),
            "replays": self._replays.get(number, []),
        }

    def _add_task(self, record: EpisodeRecord) -> int:
        task = record.task
        context = [[key, self.add_text(text)] for key, text in task.context.items()]
        value = {
            "id": task.task_id,
            "source": task.source,
            "prompt": self.add_text(task.prompt),
            "answer": task.answer,
            "aliases": list(task.aliases),
            "context": context,
            "metadata": {key: str(value) for key, value in task.metadata.items()},
        }
        return self.tasks.add(repr(value), value)

    def _make_agent(self, view: EpisodeView, agent: AgentRecord, replayed: ReplayedEpisode) -> dict[str, Any]:
        rest = replayed.blocks[agent.agent_id][len(agent.turns) :]
        return {
            "id": str(agent.agent_id),
            "status": str(agent.status),
            "objective": self.add_text(agent.objective),
            "granted": agent.granted_tokens,
            "reply": None if agent.reply is None else self.add_text(agent.reply),
            "after": self._make_block(rest[0]) if rest else None,
            "turns": [self._make_turn(view, (agent.agent_id, i), replayed) for i in range(len(agent.turns))],
        }

    def _make_turn(self, view: EpisodeView, place: TurnPlace, replayed: ReplayedEpisode) -> dict[str, Any]:
        agent_id, index = place
        turn = view.record.by_id[agent_id].turns[index]
        facts = turn.facts
        generation = turn.generation
        key = (view.file, TurnKey(view.record.episode_id, agent_id, index))
        credit = [advantages.get(key) for advantages in self._advantages]
        rewards = []
        for name, values_by_agent in view.record.by_turn.items():
            if agent_id in values_by_agent and values_by_agent[agent_id][index]:
                rewards.append([name, round_number(values_by_agent[agent_id][index])])
        # The page needs no key for an empty value.
        optional = {
            "fault": None if facts.fault is None else str(facts.fault),
            "children": [str(child) for child in facts.children],
            "refused": {str(position + 1): str(fault) for position, fault in facts.refused.items()},
            "critical": int(place in replayed.timeline.critical),
            "adds": rewards,
            "weight": {str(i): weights[key] for i, weights in enumerate(self._weights) if key in weights},
            "tokens": self._measure_tokens(turn, replayed.renderer),
            # A log-prob above -0.005 is 0.
            "logprobs": [round(value, 2) or 0 for value in generation.behavior_logprobs],
            "credit": credit,
        }
        return {
            "wrote": self._make_block(replayed.blocks[agent_id][index]),
            "prompt": facts.prompt_tokens,
            "text": self.add_text(generation.text),
            "generated": facts.generated_tokens,
            "max": facts.max_new_tokens,
            "stop": str(facts.finish_reason),
            "outcome": str(facts.outcome),
            "at": replayed.timeline.starts[place],
            "version": generation.policy_version,
            "temperature": generation.temperature,
            **{name: value for name, value in optional.items() if value},
        }

    def _measure_tokens(self, turn: Turn, renderer: Renderer | None) -> list[int] | None:
        """Return the length of each token's text, in the units of a script's strings.

        `None`: the tokenizer is unknown, or the texts of the tokens do not add up to the turn's text.
        """
        if renderer is None or renderer.decode is None:
            return None
        texts = []
        for token in turn.generation.token_ids:
            key = (id(renderer), token)
            if key not in self._token_texts:
                self._token_texts[key] = renderer.decode((token,))
            texts.append(self._token_texts[key])
        if "".join(texts) != turn.generation.text:
            return None
        return [len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in texts]

    def _make_block(self, block: Iterable[Message]) -> list[Any]:
        messages = []
        for message in block:
            texts = [self.add_text(part.text, part.trusted) for part in message.parts if part.text]
            messages.append([str(message.role), *texts])
        return messages


def _make_ledger(record: EpisodeRecord, ledger: Sequence[LedgerChange]) -> list[Any]:
    """Return a list of each change: its turn, and the tokens of each changed account."""
    numbers = {agent.agent_id: number for number, agent in enumerate(record.agents)}
    changes: list[Any] = []
    for change in ledger:
        accounts = []
        for agent_id, account in change.accounts.items():
            amounts = (account.granted, account.spent, account.reserved, account.lent)
            accounts.append([numbers[agent_id], *(amount.total_tokens for amount in amounts)])
        turn = None if change.turn is None else [numbers[change.turn[0]], change.turn[1]]
        changes.append([turn, accounts])
    return changes


def _get_outcome(view: EpisodeView) -> str:
    record = view.record
    if record.root.failed:
        return str(record.root.status).replace("_", " ")
    return view.outcome or "answered"


def _find_group(view: EpisodeView) -> tuple[int | None, str]:
    """Return the step of training and the group of an episode. Outside of training, a group has the same task.

    Every job of a run has groups of the same ids, so the name of a group begins with its job.
    """
    match = _EPISODE_ID.match(view.record.episode_id)
    step = None if match is None else int(match[1])
    group = view.record.task.task_id if match is None else f"s{match[1]}.{match[2]}"
    return step, f"{view.job} {group}" if view.job else group


def _list_troubles(record: EpisodeRecord) -> list[str]:
    """Return the statuses of the agents that failed and the faults of all turns, each once."""
    troubles: dict[str, None] = {}
    for agent in record.agents:
        if agent.failed:
            troubles[str(agent.status)] = None
        for turn in agent.turns:
            faults = [turn.facts.fault, *turn.facts.refused.values()]
            troubles |= {str(fault): None for fault in faults if fault is not None}
    return list(troubles)


def _round_numbers(value: float | tuple[float, ...]) -> Any:
    return [round_number(float(number)) for number in value] if isinstance(value, tuple) else round_number(float(value))
