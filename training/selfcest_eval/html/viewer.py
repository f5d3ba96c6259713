"""The page of `selfcest trace --html`: episodes to choose from, and of the chosen one all that there is to see.

Texts, tasks and limits that many episodes share are in the page once. The page reads what it shows, when it shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from selfcest_env.errors import RecordError
from selfcest_env.record import AgentRecord, EpisodeRecord, Turn
from selfcest_env.replay import replayed_episode
from selfcest_env.types import Message, TurnKey
from selfcest_eval.html.page import Page, asset, rounded
from selfcest_eval.html.playing import Block, Clock, Place, Renderer, ReplayedEpisode, play_again
from selfcest_training.credit.base import Credit


@dataclass(frozen=True)
class EpisodeView:
    """An episode to show.

    Attributes:
        record: the episode.
        right: whether a study's grader found its answer right; `None`: its reward says.
        played_as: what a study played it as, or which of several files it is of.
        file: the number of its file: ids are an episode's own in there alone.
    """

    record: EpisodeRecord
    right: bool | None = None
    played_as: str = ""
    file: int = 0

    @property
    def key(self) -> tuple[int, str]:
        return self.file, self.record.episode_id


@dataclass(frozen=True)
class SchemeCredit:
    """What one scheme says of the episodes.

    Attributes:
        name, formula: of the scheme.
        credits: of the groups, by file; none of a file that it cannot be computed for.
    """

    name: str
    formula: str
    credits: Sequence[Sequence[Credit]]


COLUMNS = ("name", "outcome", "family", "size", "clones", "tokens", "critical", "return", "prompt", "of", "played_as")


def viewer_page(
    title: str,
    shown: Sequence[EpisodeView],
    renderers: Sequence[Renderer],
    schemes: Sequence[SchemeCredit],
    left_out: Sequence[str] = (),
) -> Page:
    """The page.

    Args:
        title: of the page.
        shown: the episodes and their replays, in the order of the list.
        renderers: see `playing.play_again`.
        schemes: credit to show side by side.
        left_out: credit that was asked for and is not shown: of which scheme, of which file, and why.
    """
    if not shown:
        raise RecordError("there is no episode to show")
    names = _names(shown)
    made = PageBuilder(renderers, schemes, {item.key: number for number, item in enumerate(shown)})
    episodes = [made.episode(number, item) for number, item in enumerate(shown)]
    rows = [made.row(name, item) for name, item in zip(names, shown, strict=True)]
    return Page(
        title,
        asset("viewer.html"),
        styles=("viewer.css",),
        scripts=("viewer.js", "viewer_tree.js", "viewer_numbers.js", "viewer_texts.js", "viewer_start.js"),
        data={
            "index": {column: [row[i] for row in rows] for i, column in enumerate(COLUMNS)},
            "schemes": [{"name": scheme.name, "formula": scheme.formula} for scheme in schemes],
            "left_out": list(left_out),
            "limits": list(made.limits),
        },
        lines={"episodes": episodes, "tasks": list(made.tasks), "texts": list(made.texts)},
    )


def _names(shown: Sequence[EpisodeView]) -> list[str]:
    """Ids to link to: an episode's own, with a number where another one before it had the same.

    Half a surrogate pair, which no address can hold, is a question mark.
    """
    seen: dict[str, int] = {}
    names = []
    for item in shown:
        name = item.record.episode_id.encode("utf-8", "replace").decode()
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}~{seen[name]}")
    return names


class _Table:
    """Values that are stored once, each under the number that stands for it."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def number(self, key: object, value: object) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._values)
            self._values.append(value)
        return self._numbers[key]


@dataclass
class PageBuilder:
    """JSON values of episodes, and the tables that they share."""

    renderers: Sequence[Renderer]
    schemes: Sequence[SchemeCredit]
    numbers: Mapping[tuple[int, str], int]  # of episodes, by file and id
    texts: _Table = field(default_factory=_Table)
    tasks: _Table = field(default_factory=_Table)
    limits: _Table = field(default_factory=_Table)

    def __post_init__(self) -> None:
        self._credit: list[dict[tuple[int, TurnKey], Any]] = [{} for _ in self.schemes]
        self._weight: list[dict[tuple[int, TurnKey], float]] = [{} for _ in self.schemes]
        for said, weights, scheme in zip(self._credit, self._weight, self.schemes, strict=True):
            for file, credits in enumerate(scheme.credits):
                for credit in credits:
                    said |= {(file, key): _numbers(value) for key, value in credit.advantage.items()}
                    said |= {(file, key): "excluded" for key in credit.excluded}
                    weights |= {(file, key): value for key, value in credit.weight.items()}
        self._replays: dict[int, list[int]] = {}
        for (file, name), number in self.numbers.items():
            of = replayed_episode(name)
            if of is not None and (file, of) in self.numbers:
                self._replays.setdefault(self.numbers[file, of], []).append(number)

    def text(self, text: str, own: bool = False) -> int:
        """A text; `own` says that this project wrote it, and no model and no task."""
        return self.texts.number((text, own), [text, 1] if own else [text])

    def row(self, name: str, item: EpisodeView) -> tuple[Any, ...]:
        record = item.record
        cost, metadata = record.cost, record.task.metadata
        of = replayed_episode(record.episode_id)
        return (
            name,
            _outcome(item),
            str(metadata.get("family", record.task.source)),
            str(metadata.get("size", "")),
            cost.clones,
            cost.total_tokens,
            cost.critical_path_tokens,
            None if record.reward_terms is None else rounded(record.team_return),
            self.text(record.task.prompt),
            None if of is None else self.numbers.get((item.file, of)),
            item.played_as,
        )

    def episode(self, number: int, item: EpisodeView) -> dict[str, Any]:
        record = item.record
        clock = Clock(record)
        played = play_again(record, self.renderers, clock)
        if played.renderer is not None and played.renderer is not self.renderers[0]:
            # The next episode was probably played by the same rules, so they are tried first.
            others = [renderer for renderer in self.renderers if renderer is not played.renderer]
            self.renderers = [played.renderer, *others]
        places = {agent.agent_id: place for place, agent in enumerate(record.agents)}
        terms = record.reward_terms
        return {
            "task": self._task(record),
            "limits": self.limits.number(record.limits, asdict(record.limits)),
            "note": record.grade_note,
            "terms": None
            if terms is None
            else [[name, rounded(value), rounded(record.weights.get(name, 1.0))] for name, value in terms.items()],
            "parts": {key: rounded(value) for key, value in record.returns_by_part.items()},
            "cost": {name: rounded(value) for name, value in asdict(record.cost).items()},
            "exact": played.renderer is not None,
            "agents": [self._agent(item, agent, played, clock) for agent in record.agents],
            "ledger": [
                [
                    None if entry.turn is None else [places[entry.turn[0]], entry.turn[1]],
                    [
                        [
                            places[agent_id],
                            account.granted.total_tokens,
                            account.spent.total_tokens,
                            account.reserved.total_tokens,
                            account.lent.total_tokens,
                        ]
                        for agent_id, account in entry.accounts.items()
                    ],
                ]
                for entry in played.ledger
            ],
            "replays": self._replays.get(number, []),
        }

    def _task(self, record: EpisodeRecord) -> int:
        task = record.task
        context = [[key, self.text(text)] for key, text in task.context.items()]
        value = {
            "id": task.task_id,
            "source": task.source,
            "prompt": self.text(task.prompt),
            "answer": task.answer,
            "aliases": list(task.aliases),
            "context": context,
            "metadata": {key: str(value) for key, value in task.metadata.items()},
        }
        return self.tasks.number(repr(value), value)

    def _agent(self, item: EpisodeView, agent: AgentRecord, played: ReplayedEpisode, clock: Clock) -> dict[str, Any]:
        blocks = played.blocks[agent.agent_id]
        rest = blocks[len(agent.turns) :]
        return {
            "id": str(agent.agent_id),
            "status": str(agent.status),
            "objective": self.text(agent.objective),
            "granted": agent.granted_tokens,
            "reply": None if agent.reply is None else self.text(agent.reply),
            "after": self._block(rest[0]) if rest else None,
            "turns": [
                self._turn(item, (agent.agent_id, index), turn, blocks[index], played, clock)
                for index, turn in enumerate(agent.turns)
            ],
        }

    def _turn(
        self, item: EpisodeView, place: Place, turn: Turn, block: Block, played: ReplayedEpisode, clock: Clock
    ) -> dict[str, Any]:
        facts, generation, (agent_id, index) = turn.facts, turn.generation, place
        key = item.file, TurnKey(item.record.episode_id, agent_id, index)
        credit = [said.get(key) for said in self._credit]
        by_turn = [(name, of[agent_id][index]) for name, of in item.record.by_turn.items() if agent_id in of]
        optional = {
            "fault": None if facts.fault is None else str(facts.fault),
            "children": [str(child) for child in facts.children],
            "refused": {str(position + 1): str(fault) for position, fault in facts.refused.items()},
            "critical": int(place in clock.critical),
            "adds": [[name, rounded(value)] for name, value in by_turn if value],
            "weight": {str(i): weights[key] for i, weights in enumerate(self._weight) if key in weights},
            "pieces": _pieces(turn, played.renderer) if any(isinstance(said, list) for said in credit) else None,
            "credit": credit,
        }
        return {
            "wrote": self._block(block),
            "prompt": facts.prompt_tokens,
            "text": self.text(generation.text),
            "generated": facts.generated_tokens,
            "max": facts.max_new_tokens,
            "stop": str(facts.finish_reason),
            "outcome": str(facts.outcome),
            "at": clock.starts[place],
            "version": generation.policy_version,
            "temperature": generation.temperature,
            **{name: value for name, value in optional.items() if value},
        }

    def _block(self, block: Iterable[Message]) -> list[Any]:
        return [
            [str(message.role), *(self.text(part.text, part.trusted) for part in message.parts if part.text)]
            for message in block
        ]


def _outcome(item: EpisodeView) -> str:
    record = item.record
    if record.root.failed:
        return str(record.root.status).replace("_", " ")
    if item.right is not None:
        return "right" if item.right else "wrong"
    correct = (record.reward_terms or {}).get("correct")
    if correct is None:
        return "answered"
    return "right" if correct >= 1 else "partly right" if correct > 0 else "wrong"


def _pieces(turn: Turn, renderer: Renderer | None) -> list[str] | None:
    """The text of each token, `None` where they are not known or do not add up to what was written."""
    if renderer is None or renderer.decode is None:
        return None
    pieces = [renderer.decode((token,)) for token in turn.generation.token_ids]
    return pieces if "".join(pieces) == turn.generation.text else None


def _numbers(value: float | tuple[float, ...]) -> Any:
    return [rounded(float(one)) for one in value] if isinstance(value, tuple) else rounded(float(value))
