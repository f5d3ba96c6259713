"""Credit from files: the same numbers as during the run, and plain words where a file cannot do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import group, three_agents
from test_job import counterfactual, play
from typer.testing import CliRunner

from selfcest_agents.replay import PlayedReplay, play_replays
from selfcest_agents.retries import FailureStats
from selfcest_agents.rollout import rollout
from selfcest_cli.main import app
from selfcest_env.errors import CreditError, RecordError, TrainingError
from selfcest_env.record import EpisodeGroup, EpisodeRecord, write_episode
from selfcest_env.replay import Intervention, Replay
from selfcest_env.types import ROOT
from selfcest_lab.estimate import make_request, score_replays
from selfcest_lab.exact import solve
from selfcest_lab.games import GAMES
from selfcest_lab.tabular import SeededNoise, TabularPolicy
from selfcest_methods.branches import Branches
from selfcest_training.credit import Coma, Grpo, Rloo, make_assigner
from selfcest_training.credit.offline import assign_stored, format_credit_lines, read_groups
from selfcest_training.run.metrics import format_episode_lines
from selfcest_training.stages import crediting
from selfcest_training.stages.crediting import assign_step_credit, play_counterfactuals
from selfcest_training.stages.rollout_batch import RolloutBatch


def write(path: Path, *records: EpisodeRecord) -> Path:
    path.write_text("".join(map(write_episode, records)), encoding="utf-8")
    return path


def apply_file(file: Path, *arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["credit", "apply", str(file), *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_groups_are_episodes_of_one_task_and_one_prefix(tmp_path: Path) -> None:
    names = ("s0.g0.e0", "s0.g1.e0", "s0.g0.e1", "s0.g1.e1")
    stored = read_groups(write(tmp_path / "e.jsonl", *(three_agents(name, 0.0) for name in names)))
    assert [[e.episode_id for e in g.episodes] for g in stored.groups] == [
        ["s0.g0.e0", "s0.g0.e1"],
        ["s0.g1.e0", "s0.g1.e1"],
    ]


def test_groups_that_a_filter_joined_are_one_group_in_the_log_and_when_it_is_read(tmp_path: Path) -> None:
    """They were read as two, with other advantages than they had been trained with."""
    first, second = (group(*(three_agents(f"s0.g{i}.e{j}", float(i)) for j in range(2))) for i in range(2))
    joined = group(*first.episodes, *second.episodes)
    alone = group(*(three_agents(f"s0.g2.e{j}", float(j)) for j in range(2)))
    file = tmp_path / "episodes.jsonl"
    file.write_text(format_episode_lines([joined, alone], [[], []]), encoding="utf-8")
    assert [json.loads(line)["format"] for line in file.read_text(encoding="utf-8").splitlines()] == [7] * 4 + [5] * 2
    stored = read_groups(file)
    assert [len(one.episodes) for one in stored.groups] == [4, 2]
    assert assign_stored(Grpo(), stored)[0].advantage == Grpo().assign(joined, {}).advantage
    # A cut line takes the whole group with it, replays included.
    replayed = replace(
        three_agents("s0.g1.e0", 0.0), episode_id=str(Replay.of("s0.g1.e0", {ROOT.child(0): Intervention.DEFAULT}))
    )
    text = format_episode_lines([alone, joined], [[], [replayed]])
    file.write_text(text[:-9], encoding="utf-8")
    with pytest.warns(UserWarning, match=r"was cut and is skipped, and so is its group s0\.g0"):
        stored = read_groups(file)
    assert [len(one.episodes) for one in stored.groups] == [2]
    assert not stored.replayed


def test_the_command_gives_the_scheme_s_numbers(tmp_path: Path) -> None:
    episodes = (three_agents("g.a", 1.0), three_agents("g.b", 0.0))
    file = write(tmp_path / "e.jsonl", *episodes)
    expected = Grpo(std_floor=0.0).assign(group(*episodes), {}).advantage
    lines = apply_file(file, "--name", "grpo", "--option", "std_floor=0.0")
    assert {line["turn"]: line["advantage"] for line in lines} == {str(k): v for k, v in expected.items()}
    frozen = apply_file(file, "--name", "per_role", "--option", "roots={name: rloo}")
    assert [line for line in frozen if line["turn"].startswith("g.a/root.1/")] == [
        {"turn": "g.a/root.1/turn0", "excluded": True}
    ]


def test_replays_come_from_the_file_or_are_missed_in_plain_words(tmp_path: Path) -> None:
    episodes = (three_agents("g.a", 1.0), three_agents("g.b", 0.0))
    names = [Replay.of(e.episode_id, {ROOT.child(i): Intervention.RESAMPLE}) for e in episodes for i in range(2)]
    replayed = [three_agents(str(name), 0.25) for name in names]
    stored = read_groups(write(tmp_path / "whole.jsonl", *replayed, *episodes))
    assert assign_stored(Coma(), stored) == [Coma().assign(group(*episodes), dict(zip(names, replayed, strict=True)))]
    assert assign_stored(Rloo(), stored) == [Rloo().assign(group(*episodes), {})]
    with pytest.raises(
        CreditError,
        match=r"cut.jsonl: credit scheme 'coma' needs 4 replays.* 1 are not in the file.*g.b/root.1=resample",
    ):
        assign_stored(Coma(), read_groups(write(tmp_path / "cut.jsonl", *replayed[:3], *episodes)))


@pytest.mark.parametrize("name", ["rae", "frozen_clones"])
def test_a_scheme_that_learns_over_steps_is_refused(name: str, tmp_path: Path) -> None:
    """Each step had the credit of the first one."""
    stored = read_groups(write(tmp_path / "e.jsonl", three_agents("g.a", 1.0), three_agents("g.b", 0.0)))
    with pytest.raises(CreditError, match=f"'{name}' learns over the steps of a run .*e.jsonl does not hold"):
        assign_stored(make_assigner(name, {}, where=""), stored)


@pytest.mark.slow
def test_advantages_of_a_run_s_file_are_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[str] = []
    whole = crediting.assign_step_credit

    def spy(assigner: Any, groups: Any, *rest: Any) -> crediting.StepCredit:
        step = whole(assigner, groups, *rest)
        during.extend(format_credit_lines(groups[:2], step.credits[:2]))
        return step

    monkeypatch.setattr("selfcest_training.trainer.assign_step_credit", spy)
    job = play(counterfactual(tmp_path))
    stored = read_groups(job.folder / "episodes.jsonl")
    assert len(stored.groups) == 4 * 2
    found = list(
        format_credit_lines(stored.groups, assign_stored(make_assigner("coma", {"samples": 2}, where=""), stored))
    )
    assert found == during


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no episode"):
        read_groups(write(tmp_path / "e.jsonl"))


def test_two_records_of_one_name_and_a_replay_without_its_episode_are_errors(tmp_path: Path) -> None:
    episode, other = three_agents("g.a", 1.0), three_agents("g.b", 0.0)
    with pytest.raises(RecordError, match=r"two records named g.a; give the file of one job"):
        read_groups(write(tmp_path / "two.jsonl", episode, other, three_agents("g.a", 0.5)))
    lost = three_agents(str(Replay.of("g.c", {ROOT.child(0): Intervention.DEFAULT})), 0.25)
    with pytest.raises(RecordError, match=r"the replay g.c/root.0=default/sample0 without its episode"):
        read_groups(write(tmp_path / "cut.jsonl", lost, episode, other))


def test_out_is_written_once(tmp_path: Path) -> None:
    file = write(tmp_path / "e.jsonl", three_agents("g.a", 1.0), three_agents("g.b", 0.0))
    arguments = ["credit", "apply", str(file), "--name", "rloo", "--out", str(tmp_path / "a.jsonl")]
    first = CliRunner().invoke(app, arguments)
    assert "1 groups, 2 episodes, 8 turns, 0 of them excluded" in first.output.replace("\n", " ")
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 8
    assert "exists; expected a new file" in str(CliRunner().invoke(app, arguments).exception)
    nowhere = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "none" / "a.jsonl")])
    assert "none is not a folder" in str(nowhere.exception)


def test_list_shows_every_scheme_with_formula_source_and_promise() -> None:
    result = CliRunner().invoke(app, ["credit", "list"])
    assert result.exit_code == 0
    for text in ("coma (unbiased)", "shapley (biased)", Coma.formula, Grpo.source):
        assert text in result.output


def test_both_rounds_of_replays_are_stored_and_read(tmp_path: Path) -> None:
    """In files of episodes, and in the rollouts that a checkpoint holds."""
    game, scheme = solve(GAMES["two_deep"]), make_assigner("branches", {"nested": True}, where="credit.options")
    policy = TabularPolicy(game.table, SeededNoise())
    requests = [make_request(game, 0, index, k) for index in range(8) for k in range(2)]
    records = [game.reward.score(record) for record in rollout(requests, policy, game.rules)]
    groups = [EpisodeGroup(game.game.task(), tuple(records[i : i + 2])) for i in range(0, len(records), 2)]

    def play(records: Sequence[EpisodeRecord], replays: Sequence[Replay]) -> dict[Replay, PlayedReplay]:
        return score_replays(game, play_replays(records, replays, policy, game.rules))

    played = play_counterfactuals(scheme, groups, play)
    credits = assign_step_credit(scheme, groups, played).credits
    names = [str(name) for of_group in played for name in of_group]
    assert {name.count("/sample") for name in names} == {1, 2}
    replays = [found.record for of_group in played for found in of_group.values()]
    stored = read_groups(write(tmp_path / "e.jsonl", *replays, *records))
    again = assign_stored(scheme, stored)
    assert [credit.advantage for credit in again] == [credit.advantage for credit in credits]
    lost = FailureStats(1, 3, 40, "status 503")
    produced = RolloutBatch(tuple(groups), tuple(groups), played, planned_episodes=16, rounds=1, failures=lost)
    assert RolloutBatch.from_json(json.loads(json.dumps(produced.to_json())), scheme) == produced
    for other in (Branches(), Branches(samples=2), Branches(samples=2, nested=True), Rloo()):
        with pytest.raises(TrainingError, match=f"that credit scheme '{other.name}' does not ask for"):
            RolloutBatch.from_json(produced.to_json(), other)
    with pytest.raises(TrainingError, match="that credit scheme 'branches' does not ask for"):
        RolloutBatch.from_json(replace(produced, replayed=tuple({} for _ in groups)).to_json(), scheme)
