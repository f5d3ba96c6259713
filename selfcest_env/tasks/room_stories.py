"""Generated stories in the grammar of bAbI's tasks 1, 2 and 3 (arXiv 1502.05698): people, things and rooms.

The official files stay for evaluation. The generator can draw other names of people and things, so that no statement of
training has a name of the evaluation. A text around the statements may have it, and the rooms are the same. The people
move between six rooms, take things that are in their room, and drop them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal, TypeVar

import numpy as np

from selfcest_env.errors import ConfigError
from selfcest_env.seeding import stream_seed
from selfcest_env.structure import Between, Checked, Count, Distinct, NotEmpty, check_order
from selfcest_env.tasks.babi import StorySource, find_document_keys, group_statements
from selfcest_env.tasks.finite import MAX_SEED
from selfcest_env.tasks.rooms import DROP_VERBS, MOVE_VERBS, ROOMS, TAKE_VERBS
from selfcest_env.tasks.source import MAX_TRIES, draw_int, make_task
from selfcest_env.types import Scalar, Task

T = TypeVar("T")
PEOPLE = ("Mary", "John", "Daniel", "Sandra")  # those of the official tasks 1 to 3
THINGS = ("football", "apple", "milk")
# Probability that a step is a movement if the people can also take or drop a thing. In the official training file of
# task 2, 2776 of 4,178 statements are movements.
_P_MOVE = 0.66


@dataclass(frozen=True)
class RoomStories(Checked, StorySource):
    """Source of generated stories. It has a fixed number of them, each a function of its index and the seed.

    Attributes:
        task: number of bAbI's task: 1 asks where a person is, 2 where a thing is, 3 where it was before another room.
        min_statements, max_statements: number of statements of a story.
        people: names of all people, each a capital and small letters.
        things: names of all things, in small letters.
        people_per_story: number of people in one story, drawn from all; at most all are used.
        things_per_story: number of things in one story, drawn from all; at most all are used.
        statements_per_document: number of statements of a part.
        stories: number of stories.
        seed: random seed of the stories.
    """

    name: ClassVar[str] = "room_stories"
    task: Literal[1, 2, 3] = 2
    min_statements: Annotated[int, Between(1, 1000)] = 8
    max_statements: Annotated[int, Between(1, 1000)] = 24
    people: Annotated[tuple[str, ...], NotEmpty(), Distinct()] = PEOPLE
    things: Annotated[tuple[str, ...], NotEmpty(), Distinct()] = THINGS
    people_per_story: Count = 4
    things_per_story: Count = 3
    statements_per_document: Annotated[int, Between(1, 1000)] = 5
    stories: Count = 2000
    seed: Annotated[int, Between(0, MAX_SEED)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "min_statements", "max_statements")
        # A thing whose rooms are known needs a movement and a taking. For task 3 it needs another movement.
        if self.max_statements < self.task:
            raise ConfigError(
                f"max_statements is {self.max_statements}; expected at least {self.task}, which a question of task "
                f"{self.task} needs"
            )
        for name in self.people:
            if re.fullmatch("[A-Z][a-z]+", name) is None:
                raise ConfigError(f"people has {name!r}; expected a capital letter and small letters, such as 'Mary'")
        for name in self.things:
            if re.fullmatch("[a-z]+", name) is None:
                raise ConfigError(f"things has {name!r}; expected small letters, such as 'apple'")

    def draw(self, rng: np.random.Generator) -> Task:
        return self._make(int(rng.integers(self.stories)))

    def tasks(self) -> tuple[Task, ...]:
        return self._tasks

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        return tuple(self._make(index) for index in range(self.stories))

    def _make(self, index: int) -> Task:
        """Return the story with this index. A story about which nothing can be asked is drawn again."""
        rng = np.random.default_rng(stream_seed(self.name, self.seed, self.task, index))
        for _ in range(MAX_TRIES):
            story = _Story(
                _choose_some(rng, self.people, self.people_per_story),
                _choose_some(rng, self.things, self.things_per_story),
            )
            for _ in range(draw_int(rng, self.min_statements, self.max_statements)):
                story.add_statement(rng, with_things=self.task > 1)
            question = story.draw_question(rng, self.task)
            if question is not None:
                break
        else:
            raise ConfigError(
                f"{self.name}: no question of task {self.task} in {MAX_TRIES} stories of at most "
                f"{self.max_statements} statements; raise max_statements"
            )
        length = self.statements_per_document
        documents = group_statements(tuple(story.statements), length)
        metadata: dict[str, Scalar] = {
            "size": len(story.statements),
            "documents": len(documents),
            "facts": json.dumps(question.facts),
            "support": json.dumps(find_document_keys(question.facts, length)),
            "qa_rule": "squad",
            "story": index,
        }
        return make_task(self.name, question.text, question.answer, metadata, documents)


@dataclass(frozen=True, slots=True)
class _Question:
    """A question, its answer, and the indices of the statements that it needs, the latest first as in the files."""

    text: str
    answer: str
    facts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Visit:
    """A room in which a thing was, and the indices of the statements from which that follows, the latest first."""

    room: str
    facts: tuple[int, ...]


@dataclass
class _Story:
    """The world of a story while it is told.

    Attributes:
        people, things: their names.
        statements: statements so far.
        room_by_person: room of each person who has moved.
        moved_at: index of the last movement of each person.
        room_by_thing: room of each thing that was dropped. All others were never taken, or are held.
        holder_by_thing: person who holds each thing.
        taken_at: index of the last taking of each thing.
        visits: known rooms of each thing, in order.
    """

    people: tuple[str, ...]
    things: tuple[str, ...]
    statements: list[str] = field(default_factory=list)
    room_by_person: dict[str, str] = field(default_factory=dict)
    moved_at: dict[str, int] = field(default_factory=dict)
    room_by_thing: dict[str, str] = field(default_factory=dict)
    holder_by_thing: dict[str, str] = field(default_factory=dict)
    taken_at: dict[str, int] = field(default_factory=dict)
    visits: dict[str, list[_Visit]] = field(default_factory=dict)

    def add_statement(self, rng: np.random.Generator, with_things: bool) -> None:
        acts = [(person, thing) for person in self.people for thing in self.things if self._can_act(person, thing)]
        if with_things and acts and rng.random() >= _P_MOVE:
            self._act(rng, *_choose(rng, acts))
        else:
            self._move(rng, _choose(rng, self.people))

    def _can_act(self, person: str, thing: str) -> bool:
        """Return whether a person can drop a thing that they hold, or take one that is in their room.

        A thing that nobody has touched is wherever it is first taken.
        """
        holder = self.holder_by_thing.get(thing)
        if holder is not None:
            return holder == person
        room = self.room_by_person.get(person)
        return room is not None and self.room_by_thing.get(thing, room) == room

    def _move(self, rng: np.random.Generator, person: str) -> None:
        here = self.room_by_person.get(person)
        room = _choose(rng, [room for room in ROOMS if room != here])
        index = self._say(f"{person} {_choose(rng, MOVE_VERBS)} to the {room}.")
        self.room_by_person[person] = room
        self.moved_at[person] = index
        for thing, holder in self.holder_by_thing.items():
            if holder == person:
                self.visits[thing].append(_Visit(room, (index, self.taken_at[thing])))

    def _act(self, rng: np.random.Generator, person: str, thing: str) -> None:
        suffix = _choose(rng, ("", " there"))
        if self.holder_by_thing.get(thing) == person:
            index = self._say(f"{person} {_choose(rng, DROP_VERBS)} the {thing}{suffix}.")
            del self.holder_by_thing[thing]
            self.room_by_thing[thing] = self.room_by_person[person]
            # From now on the files name the dropping in the place of the taking.
            self.visits[thing][-1] = _Visit(self.room_by_person[person], (index, self.moved_at[person]))
            return
        index = self._say(f"{person} {_choose(rng, TAKE_VERBS)} the {thing}{suffix}.")
        self.room_by_thing.pop(thing, None)
        self.holder_by_thing[thing] = person
        self.taken_at[thing] = index
        visit = _Visit(self.room_by_person[person], (index, self.moved_at[person]))
        visits = self.visits.setdefault(thing, [])
        # A thing is taken in the room in which it was dropped, which is no new visit.
        visits[-1:] = [visit]

    def _say(self, statement: str) -> int:
        self.statements.append(statement)
        return len(self.statements) - 1

    def draw_question(self, rng: np.random.Generator, task: int) -> _Question | None:
        """Return a question of one of bAbI's tasks; `None` if no statement answers one."""
        if task == 1:
            if not self.room_by_person:
                return None
            person = _choose(rng, sorted(self.room_by_person))
            return _Question(f"Where is {person}?", self.room_by_person[person], (self.moved_at[person],))
        known = sorted(thing for thing, visits in self.visits.items() if len(visits) >= task - 1)
        if not known:
            return None
        thing = _choose(rng, known)
        visits = self.visits[thing]
        if task == 2:
            return _Question(f"Where is the {thing}?", visits[-1].room, visits[-1].facts)
        index = draw_int(rng, 1, len(visits) - 1)
        # The question is about the last visit to a room.
        index = max(i for i, visit in enumerate(visits) if visit.room == visits[index].room)
        facts = dict.fromkeys((*visits[index].facts, *visits[index - 1].facts))
        return _Question(
            f"Where was the {thing} before the {visits[index].room}?", visits[index - 1].room, tuple(facts)
        )


def _choose(rng: np.random.Generator, items: Sequence[T]) -> T:
    return items[int(rng.integers(len(items)))]


def _choose_some(rng: np.random.Generator, items: Sequence[str], count: int) -> tuple[str, ...]:
    """Draw distinct items; all of them if there are no more than `count`."""
    return tuple(items[int(index)] for index in rng.permutation(len(items))[:count])
