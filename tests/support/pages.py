"""Episodes for the tests of pages: played by experts that err, in groups, with replays; and some that mean harm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from test_job import config

from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.replay import play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import OracleActor
from selfcest_env.record import EpisodeGroup, EpisodeRecord, write_episode
from selfcest_env.reward import make_reward
from selfcest_env.rules import Rules
from selfcest_env.tasks import make_source
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.types import CloneRequest, Delegate, Limits, Task
from selfcest_env.views import Observation
from selfcest_eval.report.run_report import RunEvaluation
from selfcest_training.config import RunConfig
from selfcest_training.credit import Coma
from selfcest_training.run import experiment
from selfcest_training.run.experiment import prepare_folder
from selfcest_training.run.job import JobId
from selfcest_training.session import record_session

RULES = Rules(Limits(total_tokens=3000, turn_tokens=256, reply_tokens=32, max_depth=2), HermesProtocol(), WordCounter())


@dataclass(frozen=True)
class Erring:
    """The expert, with a wrong answer or none now and then."""

    expert: OracleActor

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        said, luck = self.expert.act(observation, rng), rng.random()
        if luck < 0.1:
            return "I do not know yet."
        return f"Answer: {rng.integers(100)}" if luck < 0.3 and "Answer:" in said else said


def groups(number: int, *, replays: bool = False, size: int = 4) -> Iterator[list[EpisodeRecord]]:
    """Groups of scored episodes, each after its replays as a run stores them."""
    sources = (
        make_source("range_sum", min_length=12, max_length=30, pieces=(3, 12), phrasing="plain"),
        make_source("ledger_qa", min_documents=4, max_documents=9, min_named=2, max_named=5),
    )
    reward, rng = make_reward("default"), np.random.default_rng(0)
    for i in range(number):
        source = sources[i % 2]
        task = source.draw(rng)
        policy = ScriptedPolicy(Erring(OracleActor(source, RULES.protocol, p_delegate=0.8)))
        requests = [RolloutRequest(f"s{i}.g0.e{k}", task, seed=10 * i + k) for k in range(size)]
        records = [reward.score(record) for record in rollout(requests, policy, RULES)]
        asked = Coma().replays(EpisodeGroup(task, tuple(records))) if replays else ()
        replayed = play_replays(records, asked, policy, RULES)
        yield [*(reward.score(played.record) for played in replayed.values()), *records]


def trained(output: Path, families: Sequence[str] = ("choice", "sums"), **changes: Any) -> RunConfig:
    """A run of two variants and two seeds, one variant's choices forced too; in seconds.

    It learns the first of the families and is evaluated on both.
    """
    choice, sums = families
    mix = {choice: {"share": 1, "styles": {"delegate": 1, "solve": 1}}}
    run = config(
        output,
        tasks={choice: {"name": "trivial:Choice"}, sums: {"name": "range_sum", "options": {"max_length": 4}}},
        seeds=[0, 1],
        model__options__max_positions=200,
        limits={"total_tokens": 200, "turn_tokens": 64, "reply_tokens": 4, "answer_reserve": 12, "max_clones": 4},
        evaluation={
            "eval_sets": [{"family": choice, "size": "any"}, {"family": sums, "size": "1-2"},
                      {"family": sums, "size": "3-4", "shift": "out"}],
            "episodes": 6,
        },
        variants__delegating__forced=True,
        variants__delegating__rl__steps=2,
        variants__delegating__rl__tasks={choice: 1},
        variants__delegating__warmstart__phases=[{"tokens": 4000, "mix": mix}],
        variants__alone={
            "limits": {"max_depth": 0},
            "warmstart": {"phases": [{"tokens": 4000, "mix": {choice: {"share": 1, "styles": {"solve": 1}}}}]},
            "rl": {"steps": 0},
        },
        **changes,
    )  # fmt: skip
    run.folder.mkdir(parents=True)
    with record_session(run.folder):
        prepare_folder(run, resume=False)
        for variant in run.variants:
            for seed in run.seeds:
                experiment._train_and_evaluate(run, JobId(variant, seed), False, RunEvaluation())
    return run


EVIL = (
    '</script><script>window.harmed=1</script><img src=x onerror="window.harmed=1"><!-- \'x\' "y" `z` ${1} &lt; '
    "javascript:window.harmed=1 \u2028\u2029\x00\x1b[31m\u202e \ud800 //# sourceMappingURL=https://example.org/x"
)
ASKED = EVIL.replace("\ud800", "")  # a call can hold no half of a pair


@dataclass(frozen=True)
class Evil:
    """Writes what would do harm in a page that did not take it for text."""

    def act(self, observation: Observation, rng: np.random.Generator) -> str:
        if observation.depth == 0 and observation.turn == 0:
            return RULES.protocol.render(Delegate((CloneRequest(ASKED), CloneRequest(ASKED, (ASKED,)))))
        return f"{EVIL} Answer: {EVIL}"


def harmful() -> EpisodeRecord:
    """An episode with such a text in every field that holds one."""
    task = Task(EVIL, EVIL, EVIL, EVIL, {ASKED: EVIL}, (EVIL,), {"family": EVIL, "size": EVIL, EVIL: EVIL})
    limits = Limits(total_tokens=20_000, turn_tokens=1000, reply_tokens=500)
    (record,) = rollout(
        [RolloutRequest(f"g.{EVIL}/a'\"b", task, seed=0)], ScriptedPolicy(Evil()), RULES.with_limits(limits)
    )
    return replace(record, reward_terms={EVIL: 0.5}, weights={EVIL: 2.0}, parts={EVIL: {EVIL: 0.5}}, grade_note=EVIL)


def write(path: Path, *records: EpisodeRecord) -> Path:
    text = "".join(map(write_episode, records))
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path
