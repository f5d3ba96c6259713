"""The conformance suite passes the built-in schemes, and fails schemes that are wrong in one way each."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from lab_schemes import OneReplayed, OneReplayedByOwnDraw
from swap_scheme import Swap

from selfcest_env.errors import CreditError, PlugInError
from selfcest_env.plugin import PlugIn
from selfcest_env.record import EpisodeGroup, EpisodeRecord
from selfcest_env.replay import Intervention, Replay
from selfcest_env.types import ROOT, AgentId, TurnKey
from selfcest_methods.branches import Branches
from selfcest_methods.ccpo import Ccpo
from selfcest_methods.downsampled import Downsampled
from selfcest_methods.hierarchical_grpo import HierarchicalGrpo
from selfcest_methods.rae import Rae
from selfcest_methods.sharp import Sharp
from selfcest_methods.state_zero import StateZero
from selfcest_methods.wideseek import WideSeek
from selfcest_training.credit import (
    Coma,
    Credit,
    CreditAssigner,
    Difference,
    DiffLoo,
    Gated,
    GatedPaper,
    Grpo,
    Parts,
    PerRole,
    Promise,
    ReplayRecords,
    Rloo,
    Shapley,
    ToGo,
    TurnCounts,
    draw_index,
)
from selfcest_training.credit.synthetic import NULL_PLAYERS, SyntheticGroup, mirror_id, mirror_record, mirror_replay
from selfcest_training.credit.testing import ConformanceError, check_assigner

RIGHT: list[CreditAssigner] = [
    Grpo(), Gated(), Gated(sides="both"), GatedPaper(), Rloo(), Difference(max_share=0.5), Coma(), Shapley(),
    PerRole(clones=PlugIn("gated")), Parts(), WideSeek(), ToGo(), Gated(PlugIn("rloo")),
    Gated(PlugIn("parts")), Gated(PlugIn("difference", {"max_share": 0.5}), sides="both"), Rae(),
    HierarchicalGrpo(own=True), HierarchicalGrpo(clones="group", scale=True),
]  # fmt: skip


# Schemes that need seconds, and more of what is above.
ALSO: list[CreditAssigner] = [
    DiffLoo(), Branches(), Shapley(orders=1), PerRole(roots=PlugIn("rloo"), clones=PlugIn("coma")), Swap(),
    Difference(paired=True), Coma(per_turn=True), DiffLoo(paired=True), Branches(nested=True),
    Branches(max_share=0.0, root_share=1.0),
    Gated(PlugIn("branches", {"nested": True})), Downsampled(PlugIn("branches"), 3, "score", reweigh=True),
    StateZero(), Sharp(term="judged"), Ccpo(),
    Difference(samples=2), Shapley(max_share=0.5), DiffLoo(samples=2, max_share=0.5), Swap(samples=3, paired=True),
    Coma(samples=2, paired=True), Branches(samples=2, max_share=0.5), Branches(samples=2, nested=True),
]  # fmt: skip


@pytest.mark.parametrize(
    "assigner", [*RIGHT, *(pytest.param(assigner, marks=pytest.mark.slow) for assigner in ALSO)], ids=str
)
def test_right_schemes_pass(assigner: CreditAssigner) -> None:
    check_assigner(assigner)


@dataclass(frozen=True)
class RemembersTheRound(Branches):
    """Between the rounds it remembers a group, which is another one's by then."""

    nested: bool = True
    last: list[EpisodeGroup] = field(default_factory=list, compare=False)

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        self.last[:] = [group]
        return super().replays(group)

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        return super().more_replays(episode, turn_counts) if episode in self.last[0].episodes else ()


class LeavesOut(Rloo):
    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = super().assign(group, replayed)
        return Credit({key: value for key, value in credit.advantage.items() if key.turn < 2})


class Infinite(Rloo):
    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        return Credit(dict.fromkeys(super().assign(group, replayed).advantage, float("inf")))


class Asks(Coma):
    """Asks for a clone that only some episodes have."""

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return [Replay.of(episode.episode_id, {ROOT.child(3): Intervention.DEFAULT}) for episode in group.episodes]


class Random(Rloo):
    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        return Credit({key: random.random() for key in super().assign(group, replayed).advantage})


class RandomReplays(Coma):
    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return random.sample(asked := super().replays(group), len(asked))


@dataclass(frozen=True)
class RunningMean(Rloo):
    """A baseline over all groups so far."""

    seen: list[float] = field(default_factory=list)

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        self.seen.extend(episode.team_return for episode in group.episodes)
        mean = sum(self.seen) / len(self.seen)
        return Credit({key: e.team_return - mean for e in group.episodes for key, _ in e.turns()})


@dataclass(frozen=True)
class Remembers(Coma):
    """What it asked for is kept until `assign`, by which time another group has asked."""

    kept: list[Sequence[Replay]] = field(default_factory=list)

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        self.kept[:] = [super().replays(group)]
        return self.kept[0]

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        mean = sum(replayed[replay].team_return if replay in replayed else 0.0 for replay in self.kept[0])
        return Credit({key: e.team_return - mean for e in group.episodes for key, _ in e.turns()})


class Normalises(Rloo):
    """Rewards in place."""

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        for episode in group.episodes:
            episode.reward_terms["score"] /= 2  # type: ignore[index]
        return super().assign(group, replayed)


class NormalisesEarly(Coma):
    """The same while it asks."""

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        for episode in group.episodes:
            episode.reward_terms["score"] /= 2  # type: ignore[index]
        return super().replays(group)


class FirstBorn(Rloo):
    """The first clone of a call is paid twice."""

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = super().assign(group, replayed)
        return Credit({k: 2 * v if k.agent_id == ROOT.child(0) else v for k, v in credit.advantage.items()})  # type: ignore[operator]


class FirstBornOnAverage(Difference):
    """The same with replays of a share of the clones, so that only means can tell."""

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = super().assign(group, replayed)
        return Credit({k: 2 * v if k.agent_id == ROOT.child(0) else v for k, v in credit.advantage.items()})  # type: ignore[operator]


class PaysForNothing(Rloo):
    null_player: ClassVar[bool] = True


class KeepsSpend(Difference):
    """A price for the clone's turns remains in the factual return alone, as when the replay forgets to refund it."""

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        credit = super().assign(group, replayed)
        return Credit({k: v - 0.3 if k.agent_id != ROOT else v for k, v in credit.advantage.items()})  # type: ignore[operator]


class Peeks(Coma):
    """Replays for the failures alone."""

    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        worst = min(group.episodes, key=lambda episode: episode.team_return).episode_id
        return [replay for replay in super().replays(group) if replay.episode_id == worst]

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        return Rloo().assign(group, replayed)


class LastTwoReplayed(Difference):
    """The two clones that were born last; a clone that causes others loses its own replay."""

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        for agent in [agent for agent in episode.agents[1:] if agent.turns][-2:]:
            yield TurnKey(episode.episode_id, agent.agent_id, 0)


class LeavesReplayed(Difference):
    """Clones that called no clone."""

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        parents = {agent.parent_id for agent in episode.agents}
        for agent in episode.agents[1:]:
            if agent.agent_id not in parents:
                yield TurnKey(episode.episode_id, agent.agent_id, 0)


class AnsweredReplayed(Difference):
    """Clones that answered."""

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        for agent in episode.agents[1:]:
            if not agent.failed:
                yield TurnKey(episode.episode_id, agent.agent_id, 0)


class TokensReplayed(Difference):
    """Clones until those replayed have generated twenty tokens."""

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        generated = 0
        for agent in episode.agents[1:]:
            generated += agent.generated_tokens
            if generated <= 20:
                yield TurnKey(episode.episode_id, agent.agent_id, 0)


class LastTurnResampled(Coma):
    """A replay of the clone's last turn is the baseline of all its turns."""

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey) -> Sequence[Intervention]:
        return [Intervention.resample(len(episode.by_id[start.agent_id].turns) - 1)]


class ReplacedByItsReply(Swap):
    """In the place of a reply stands another one that the reply itself decides."""

    def interventions(self, group: EpisodeGroup, episode: EpisodeRecord, start: TurnKey) -> Sequence[Intervention]:
        reply = episode.by_id[start.agent_id].reply
        return [Intervention.replace("2" if reply == "1" else "1")]


@dataclass(frozen=True)
class LastOfSecondRound(Branches):
    """In the second round the clone that was born last is replayed alone."""

    null_player: ClassVar[bool] = False
    nested: bool = True

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        by_first: dict[str, Replay] = {}
        for replay in super().more_replays(episode, turn_counts):
            by_first[replay.episode_id] = replay
        return list(by_first.values())

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        return Rloo().assign(group, replayed)


class TurnsOfSecondRound(LastOfSecondRound):
    """In the second round clones are replayed where the whole replay took few turns."""

    def more_replays(self, episode: EpisodeRecord, turn_counts: TurnCounts) -> Sequence[Replay]:
        few = {str(first) for first, turns in turn_counts.items() if sum(turns.values()) < 8}
        return [r for r in Branches(nested=True).more_replays(episode, turn_counts) if r.episode_id in few]


class SharesOfItsOwn(Difference):
    """A share of the clones by a generator of its own, drawn in the order of the tree: right, and not by `coin`."""

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        generator = random.Random(episode.seed)
        for agent in episode.agents[1:]:
            if generator.random() < 0.4 and agent.turns:
                yield TurnKey(episode.episode_id, agent.agent_id, 0)


class OneOfEachCall(Difference):
    """One clone of every call: whoever called decides how many share that chance, so no clone moves its own."""

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        calls: dict[object, list[AgentId]] = {}
        for agent in episode.agents[1:]:
            calls.setdefault((agent.parent_id, agent.born_at), []).append(agent.agent_id)
        for clones in calls.values():
            chance = draw_index((1 / len(clones),) * len(clones), "the one", episode, min(clones))
            yield TurnKey(episode.episode_id, sorted(clones)[chance], 0)


class ReplayedByTheEnd(Difference):
    """All clones of an episode are replayed or none, by what the root wrote in the end or how the tree turned out."""

    null_player: ClassVar[bool] = False

    def chosen(self, episode: EpisodeRecord) -> bool:
        return zlib.crc32((episode.answer or "").encode()) % 2 == 0

    def _list_starts(self, episode: EpisodeRecord) -> Iterator[TurnKey]:
        for agent in episode.agents[1:]:
            if agent.turns and self.chosen(episode):
                yield TurnKey(episode.episode_id, agent.agent_id, 0)


class ReplayedByLengthOfAnswer(ReplayedByTheEnd):
    def chosen(self, episode: EpisodeRecord) -> bool:
        return len(episode.answer or "") % 2 == 0


class ReplayedByStatusOfRoot(ReplayedByTheEnd):
    def chosen(self, episode: EpisodeRecord) -> bool:
        return episode.agents[0].failed


class ReplayedByTotal(ReplayedByTheEnd):
    def chosen(self, episode: EpisodeRecord) -> bool:
        return episode.cost.total_tokens % 2 == 0


class ReplayedByNumberOfAgents(ReplayedByTheEnd):
    def chosen(self, episode: EpisodeRecord) -> bool:
        return len(episode.agents) % 2 == 0


@pytest.mark.slow
@pytest.mark.parametrize("assigner", [SharesOfItsOwn(), OneOfEachCall()], ids=lambda a: type(a).__name__)
def test_chances_that_no_clone_moves_pass(assigner: CreditAssigner) -> None:
    check_assigner(assigner)


class Forgets(Coma):
    def replays(self, group: EpisodeGroup) -> Sequence[Replay]:
        return super().replays(group)[1:]


class InMemory(Rloo):
    """Credit by the identity of objects, which no file can give back."""

    def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
        prompts = {id(agent.turns) for episode in group.episodes for agent in episode.agents}
        return Credit(dict.fromkeys(super().assign(group, replayed).advantage, float(len(prompts))))


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (RemembersTheRound(), CreditError, "raised KeyError: Replay"),
        (LeavesOut(), CreditError, "root/turn2 is neither in advantage nor in excluded"),
        (Infinite(), CreditError, "is inf; expected a finite number"),
        (Asks(), CreditError, "agent root.3 took no turn"),
        (Random(), ConformanceError, "other advantages the second time"),
        (RandomReplays(), ConformanceError, "other replays the second time"),
        (RunningMean(), ConformanceError, "depend on the other groups of the batch"),
        (Remembers(), ConformanceError, "depend on the other groups of the batch"),
        (Normalises(), ConformanceError, "changed the records"),
        (NormalisesEarly(), ConformanceError, "changed the records"),
        (FirstBorn(), ConformanceError, "root.0/turn0: with two siblings under each other's ids"),
        (FirstBornOnAverage(max_share=0.5), ConformanceError, "with two siblings under each other's ids"),
        (PaysForNothing(), ConformanceError, "a clone that never matters gets"),
        (KeepsSpend(), ConformanceError, "a clone that never matters gets -0.3"),
        (Peeks(), ConformanceError, "chooses its replays by the rewards"),
        (OneReplayed(), ConformanceError, "whether root.0 is replayed, .* replay a share of the clones"),
        (OneReplayedByOwnDraw(), ConformanceError, "whether root.0 is replayed, .* replay a share of the clones"),
        (LastTwoReplayed(), ConformanceError, "whether root.0 is replayed"),
        (LeavesReplayed(), ConformanceError, "whether root.0 is replayed"),
        (AnsweredReplayed(), ConformanceError, "whether root.0 is replayed"),
        (TokensReplayed(), ConformanceError, "whether root.0 is replayed"),
        (ReplayedByTheEnd(), ConformanceError, "whether root.0 is replayed"),
        (ReplayedByLengthOfAnswer(), ConformanceError, "whether root.0 is replayed"),
        (ReplayedByStatusOfRoot(), ConformanceError, "whether root.0 is replayed"),
        (ReplayedByTotal(), ConformanceError, "whether root.0 is replayed"),
        (ReplayedByNumberOfAgents(), ConformanceError, "whether root.0 is replayed"),
        (LastTurnResampled(), ConformanceError, "or with what in its place, depends on what that clone did"),
        (ReplacedByItsReply(), ConformanceError, "or with what in its place, depends on what that clone did"),
        (LastOfSecondRound(), ConformanceError, "whether root.1.0 is replayed"),
        (TurnsOfSecondRound(), ConformanceError, "whether root.1.0 is replayed"),
        (Forgets(), CreditError, "raised KeyError"),
        (InMemory(), ConformanceError, "stored and read again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Rloo | Coma | Difference) else "",
)
def test_wrong_schemes_fail_in_plain_words(wrong: CreditAssigner, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        check_assigner(wrong)
    assert f"credit scheme '{wrong.name}'" in str(caught.value)


def test_a_conformance_error_fails_a_test_like_any_assertion() -> None:
    assert issubclass(ConformanceError, AssertionError)


def test_a_scheme_must_declare_itself() -> None:
    class Anonymous(CreditAssigner):
        def assign(self, group: EpisodeGroup, replayed: ReplayRecords) -> Credit:
            return Rloo().assign(group, replayed)

    with pytest.raises(PlugInError, match="Anonymous lacks name, formula, source, promise, null_player; declare them"):
        check_assigner(Anonymous())


# Synthetic groups


def test_mirroring_is_its_own_inverse_and_keeps_returns() -> None:
    synthetic = SyntheticGroup(3)
    for episode in synthetic.group.episodes:
        assert mirror_record(mirror_record(episode)) == episode
        assert mirror_record(episode) != episode
        assert mirror_record(episode).team_return == episode.team_return
    assert [str(mirror_id(a.agent_id)) for a in episode.agents] == ["root", "root.1", "root.0", "root.0.0", "root.2"]


def test_replays_of_a_synthetic_group_keep_what_does_not_descend() -> None:
    """A default for the third clone keeps what the others brought; the first never matters, present or not."""
    synthetic = SyntheticGroup(5)
    (episode, *_) = synthetic.group.episodes
    third = Replay.of(episode.episode_id, {ROOT.child(2): Intervention.DEFAULT})
    record = synthetic.play([third])[third]
    assert record.by_id[ROOT.child(2)].absent
    noise = 0.2
    assert 0 <= episode.team_return - record.team_return + noise <= 0.5 + 2 * noise
    nested = Replay.of(episode.episode_id, {ROOT.child(1): Intervention.DEFAULT})
    assert ROOT.child(1).child(0) not in synthetic.play([nested])[nested].by_id
    assert {str(clone) for clone in NULL_PLAYERS} == {"root.0", "root.1.0"}
    assert mirror_replay(third) == third


def test_promises_are_part_of_the_interface() -> None:
    assert {scheme.promise for scheme in RIGHT} == {Promise.BIASED, Promise.UNBIASED}
