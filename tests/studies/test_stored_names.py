"""Stored results are found again: literal keys, digests and names of every stored form, also after classes have moved.

The numbers were taken before classes and fields declared their stored names. If a number changes, stored studies, cells
or checkpoints are not found any more: correct the stored name, not the number.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from records import three_agents
from renamed import renamed
from study_players import OneClone

from selfcest_agents.openai_client import ServerConfig
from selfcest_agents.retries import FailureStats
from selfcest_baselines.bench.entries import ENTRIES
from selfcest_baselines.bench.runs import Run, load, settings_text
from selfcest_baselines.broadcast import BroadcastLearner
from selfcest_env.graders import Grade
from selfcest_env.graders.grade import AnswerPart
from selfcest_env.graders.qa import Overlap
from selfcest_env.plugin import PlugIn
from selfcest_env.record import cost_measures, to_json
from selfcest_env.stored import declared_name, stored_fields, to_stored
from selfcest_env.tasks import Style
from selfcest_env.types import Status
from selfcest_eval.play.config import StudyConfig
from selfcest_eval.play.digest import digest
from selfcest_eval.play.forced import NeverDelegates
from selfcest_eval.play.policies import ModelPolicy, ServerPolicy
from selfcest_eval.play.results import Result, ResultKey, Unplayable, parse_result, write_result, write_unplayable
from selfcest_eval.play.strategies import STRATEGIES, Strategy, make_strategy
from selfcest_eval.play.study import Study
from selfcest_eval.stats.decision import Decisions, Means
from selfcest_methods.atlas import Guidance, Memory
from selfcest_methods.clpo import Clpo, TwinRequest
from selfcest_methods.playbook import Bullet, Playbook
from selfcest_training import config_file
from selfcest_training.config_file import load_config, parse_as, run_digest, with_stored_keys
from selfcest_training.families import Bucket
from selfcest_training.run.checkpoint import CheckpointManifest, TrainState
from selfcest_training.shipped import ShippedManifest
from selfcest_training.stages.base import Stages

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"

# A strategy that routes to others, by a built-in name with options of its own.
ROUTED = {
    "one": {"name": "monolithic_read", "options": {"max_reads": 1}},
    "two": {"name": "thread_count", "options": {"threads": 2}},
}
SAMPLED = {"temperature": 0.8}
STUDY: dict[str, Any] = {
    "name": "stored",
    "episodes": 2,
    "seeds": [0],
    "budgets": [600],
    "limits": {"turn_tokens": 160, "answer_reserve": 12, "max_turns": 9, "max_reads": 3, "max_depth": 2},
    "policy": {"name": "study_players:Looking", "options": {"by_chance": True}},
    "reward": {"name": "default", "options": {"token_cost": {"price": 0.05}}},
    "price": {"prompt": 1.0, "generated": 2.0, "cached": 0.5, "currency": "EUR"},
    "tasks": {"ledger": {"name": "ledger_qa"}},
    "eval_sets": [{"family": "ledger", "size": "4", "options": {"min_documents": 4, "max_documents": 4}}],
    "strategies": {
        "plain": {},
        "delegate": {},
        "monolithic": {},
        "monolithic_read": {"options": {"max_reads": 2}},
        "self_consistency": {"options": {"samples": 3, "max_reads": 1}, **SAMPLED},
        "best_of_n": {"options": {"samples": 4}, **SAMPLED},
        "spawn_join": {"options": {"threads": 2}, **SAMPLED},
        "map_reduce": {"options": {"documents_per_clone": 3}},
        "oracle_decomposition": {},
        "v0_router": {"options": {"strategies": ROUTED, "price": 0.5}},
        "always_delegates": {},
        "never_delegates": {},
        "turn_limit": {"options": {"turns": 5, "reminders": False}},
        "turn_extension": {"options": {"turns": 3, "extension": 4}},
        "thread_count": {"options": {"threads": 3}},
        "decide_first": {"options": {"reads": True, "otherwise": "alone", "decision_tokens": 40}},
        "modes": {"options": {"instant_tokens": 24}},
        "scale": {"options": {"parts": 2, "hard_from": 4.0, "threads": 2}, **SAMPLED},
        "bandit": {"options": {"arms": ["a", "b"], "rounds": 3, "alpha": 0.5}, **SAMPLED},
        "symphony_coord": {"options": {"agents": ["a", "b"], "rounds": 3, "top": 1, "alpha": 0.5}, **SAMPLED},
        "effort": {"options": {"effort": 0.25}},
        "planner": {"options": {"rounds": 3, "workers": 2}},
        "playbook": {"options": {"file": "book.json"}},
        "atlas": {"options": {"file": "memory.json", "min_uses": 5}},
        "board": {"options": {"posts": 5}},
        "memory_agent": {},
        "bm25": {"options": {"documents": 2, "hops": 2}},
        "bm25_read": {"options": {"documents": 3}},
        "bm25_sentences": {"options": {"words": 300}},
        "full_reader": {},
        "outside": {"name": "study_players:OneClone", "options": {"clones": 2}},
    },
}
PLAYBOOK = Playbook((Bullet("root-1", "Add.", helpful=2),), added=1, tasks=("t",))
MEMORY = Memory((Guidance("sum", "Add.", uses=2, successes=1),), tasks=("t",))
# Digests of the keys of all results and episodes of a strategy and, after its name, of its perfect player's style.
STUDY_KEYS = {
    "plain": "8dd7f2c52aa4c630",
    "delegate": "7ea3e76504f8bb5e",
    "delegate delegate": "d014c593de3c27f0",
    "monolithic": "6958f06328f026ed",
    "monolithic solve": "15be5b7240b47e98",
    "monolithic_read": "007285815283be87",
    "monolithic_read read": "dfed48dcdfc84bae",
    "self_consistency": "2d15c6ba68f9c5ce",
    "self_consistency read": "029e111eb3308b0d",
    "best_of_n": "f8b3741c28e2c9d3",
    "best_of_n solve": "336e7ce2a8959658",
    "spawn_join": "fea6c3108002d878",
    "map_reduce": "2bc0f32484586342",
    "oracle_decomposition": "41bd1abb5bf63c14",
    "oracle_decomposition delegate": "63e80c02d557941b",
    "v0_router": "19d4ddaf81c15d27",
    "always_delegates": "fa9b8eba97b1c080",
    "always_delegates delegate": "fa8a1be13494af87",
    "never_delegates": "ccd81b2fa45f6054",
    "never_delegates read": "b27a0fbbc9c7e99e",
    "turn_limit": "04a6c52ff1ad325a",
    "turn_extension": "e226fc85b991d02a",
    "thread_count": "85d22af18ddda7e5",
    "decide_first": "70bbdcd6e3446252",
    "modes": "ce40dd5fe97d5471",
    "scale": "3192d8b80bea2146",
    "bandit": "0189e2c3a7da2516",
    "symphony_coord": "ba53500a4a8c6cfd",
    "effort": "815689b0ac3dc522",
    "planner": "3575043bf990b1c3",
    "playbook": "c28b79d1bb938388",
    "atlas": "4916ac0307c52214",
    "board": "2e6c3a694665c0ee",
    "memory_agent": "ef2d3e77a6acddd4",
    "bm25": "95ac5e8756f08eab",
    "bm25 delegate": "e269777521eeb040",
    "bm25_read": "78da497bf7c9b1d2",
    "bm25_read solve": "710e8e83ffb8d300",
    "bm25_sentences": "e14547bc4b74bae6",
    "bm25_sentences delegate": "4b48104b2bfa8567",
    "full_reader": "cd91d4457241095b",
    "full_reader solve": "8a03394848a9537d",
    "outside": "cd4eafa9b3d9794a",
}


def our_classes() -> list[type]:
    """All strategies of this project, and all classes that declare stored names."""
    classes = {STRATEGIES.load(name) for name in STRATEGIES} | {Strategy}
    for module in [module for name, module in sys.modules.items() if name.startswith("selfcest_")]:
        for value in vars(module).values():
            if isinstance(value, type) and "__stored_name__" in vars(value):
                classes.add(value)
    return sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__))


def keys_of(study: Study) -> dict[str, str]:
    for name in ("_judge", "_costs"):
        vars(study).pop(name, None)
    keys: dict[str, list[tuple[str, str]]] = {}
    for cell in study.cells():
        name = cell.strategy if cell.style is None else f"{cell.strategy} {cell.style}"
        for item in study.items_of(cell):
            keys.setdefault(name, []).append((item.key, item.played))
    return {name: digest(found)[:16] for name, found in keys.items()}


def test_keys_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.json").write_text(PLAYBOOK.to_json(), encoding="utf-8")
    Path("memory.json").write_text(MEMORY.to_json(), encoding="utf-8")
    study = Study(parse_as(StudyConfig, STUDY))
    # The ledgers of this study do not state which documents they need, as `oracle_documents` requires.
    assert set(STUDY["strategies"]) == {*STRATEGIES, "outside"} - {"oracle_documents"}, (
        "a new one belongs into the table"
    )
    assert keys_of(study) == STUDY_KEYS
    with renamed(our_classes()):
        assert keys_of(study) == STUDY_KEYS


def test_every_option_of_a_built_in_strategy_declares_its_stored_name() -> None:
    for name in STRATEGIES:
        cls = STRATEGIES.load(name)
        declared = getattr(cls, "__stored_field_names__", {})
        assert set(declared) == {item.name for item in fields(cls)}, f"{name} needs @stored_as with all of its options"


def test_a_strategy_is_known_by_the_name_that_the_config_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    own = make_strategy("study_players:OneClone", {"clones": 2}, "strategies.own")
    assert own.recipe == {"strategy": "study_players:OneClone", "clones": 2}
    with renamed([OneClone]):
        assert own.recipe == {"strategy": "study_players:OneClone", "clones": 2}
    monkeypatch.setitem(sys.modules, "reexports", ModuleType("reexports"))
    monkeypatch.setattr("reexports.Mine", OneClone, raising=False)
    again = make_strategy("reexports:Mine", {"clones": 2}, "strategies.own")
    assert again.recipe == {"strategy": "reexports:Mine", "clones": 2}, "as the user wrote it"
    assert again == own, "the name is no option"
    # A built-in one has its registered name, however it was made.
    by_path = make_strategy("selfcest_eval.play.forced:NeverDelegates", {}, "strategies.own")
    by_name = make_strategy("never_delegates", {}, "strategies.own")
    assert by_path.identity == by_name.identity == type(by_name)().identity == declared_name(NeverDelegates)
    monkeypatch.setitem(STRATEGIES.builtins, "registered", "study_players:OneClone")  # type: ignore[arg-type]
    monkeypatch.setattr(OneClone, "version", 3)
    registered = make_strategy("registered", {}, "strategies.own")
    assert registered.recipe == {"strategy": "registered", "clones": 1, "version": 3}


def test_fingerprints_of_policies() -> None:
    tiny = PlugIn("tiny", {"hidden_size": 16, "num_heads": 2})
    model = ModelPolicy(model=tiny, sampler=PlugIn("transformers", {}))
    server = ServerPolicy(ServerConfig("http://127.0.0.1:1/v1", "m", extra={"a": 1}), weights="w")
    with renamed(our_classes()):
        assert model.fingerprint(3) == "f0f7975a165732bf263a9332b081af59"
        assert server.fingerprint(0) == "55ef8fdb2b396b072321b1327b16b9df"


def test_lines_of_results_and_records() -> None:
    place = ResultKey("ledger", "4", "out", "delegate", 600, 1, "t0", Style.SOLVE)
    grade, support = Grade(0.5, False, True, "why", (AnswerPart("A", 0.5),)), Overlap(0.0, 0.5, 1.0, 0.25)
    episode, costs = three_agents("e", 1.0), {"total_tokens": 3.0}
    result = Result(
        "k", "p", place, (episode,), 0, grade, Status.ANSWERED, costs, True, support, lifted=("total_tokens",)
    )
    assert digest(to_json(episode)) == "b986f1cf74990fe56b404f89fe17a1ae"
    with renamed(our_classes()):
        line = write_result(result, lambda value: digest(value))
        assert digest(line) == "d68f764d327b22e509aad3bc161f03ff"
        assert digest(write_unplayable(Unplayable(place, "gone"))) == "9531cbd507611105b9144623e8109e26"
    assert parse_result(json.loads(line), None) == replace(result, episodes=())
    graded = replace(result, reports=Overlap(0.5, 0.75, 1.0, 0.25))
    line = write_result(graded, lambda value: digest(value))
    assert parse_result(json.loads(line), None) == replace(graded, episodes=())


def test_names_in_checkpoints_and_evidence() -> None:
    paid = ["total_tokens", "prompt_tokens", "generated_tokens", "critical_path_tokens", "peak_context"]
    assert list(cost_measures()) == [*paid, "billed_tokens", "kv_token_steps", "clones", "turns", "depth"]
    compute = ["demonstration_tokens", "sampled_tokens", "read_tokens", "trained_tokens", "compute_at_rl"]
    state = ["stage", "step", "attempt", "num_updates", *compute, "sampled_at_rl", "cpu_seconds"]
    assert list(to_stored(TrainState())) == state
    assert list(to_stored(CheckpointManifest())) == ["config", "logs", "warm_start", "files"]
    assert list(to_stored(FailureStats())) == ["dropped_groups", "failures", "tokens", "cause"]
    assert list(to_stored(ShippedManifest("", "", 0, {}))) == ["command", "commit", "seed", "weights"]
    assert list(to_stored(Run(1.0, "", "", ()))) == ["budget", "settings", "version", "points"]
    means = Means(0.0, 0.0, 0.0, 0.0)
    assert list(to_stored(means)) == ["delegated", "accuracy", "reward", "tokens"]
    worth = ["free", "always", "never", "threshold", "threshold_reward", "regret", "precision", "recall", "f1"]
    assert list(to_stored(Decisions(means, means, means, 1.0, 0.0, 0.0, None, None, None))) == worth


def test_what_stages_remember() -> None:
    sampler = Clpo()
    sampler.state.step, sampler.state.requests = 2, [TwinRequest(Bucket("ledger", 4), "t", easier=True)]
    state = {"step": 2, "waiting": [{"bucket": {"family": "ledger", "size": 4}, "task_id": "t", "easier": True}]}
    assert sampler.state_dict() == state
    restored = Clpo()
    restored.load_state_dict(json.loads(json.dumps(state)))
    assert restored.state_dict() == state
    stages = Stages(sampler, sampler, sampler, sampler)  # type: ignore[arg-type]
    assert list(stages.with_state()) == ["tasks", "gate", "rewards", "credit"]


def test_settings_of_every_stored_run_of_the_benchmark() -> None:
    stored = {cell.entry: run.settings for cell, run in load(STUDIES / "scenarios" / "evidence").items()}
    assert stored.keys() <= ENTRIES.keys()
    assert len(stored) >= 6
    with renamed(our_classes()):
        assert {name: settings_text(ENTRIES[name], name) for name in stored} == stored


@dataclass(frozen=True)
class WithCredit(BroadcastLearner):
    """A credit of one's own, which has no stored name: it must not be taken for the learner that it derives from."""

    scale: float = 1.0


def test_settings_of_a_learner_of_ones_own() -> None:
    class Bare:
        """No dataclass, so its settings are not known."""

    credit = BroadcastLearner(learning_rate=0.003)
    assert settings_text(WithCredit(), "mine:WithCredit").startswith("WithCredit(episodes=256, ")
    assert settings_text(credit, "broadcast").startswith("OfTheGrid(credit=Broadcast(std_floor=0.25), ")
    assert settings_text(Bare(), "mine:Own steps=512") == "mine:Own"  # type: ignore[arg-type]
    assert settings_text(OneClone(3), "mine:Own clones=3") == "OneClone(clones=3)"  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def credit_map() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        return importlib.import_module("studies.credit_map.study")


def test_configs_of_every_stored_run_of_the_credit_map(credit_map: ModuleType) -> None:
    runs = [*credit_map.stored(credit_map.STORE), *credit_map.stored(credit_map.TUNED)]
    assert len(runs) > 300
    with renamed([*our_classes(), credit_map.Game, credit_map.Job]):
        assert [run["config"] for run in runs] == [credit_map.job_of(run).config for run in runs]
        assert all(list(run)[:4] == list(stored_fields(credit_map.job_of(run))) for run in runs)


def test_a_renamed_config_key_keeps_the_configs_of_stored_cells(
    credit_map: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = importlib.import_module("studies.trained")
    cell = STUDIES / "cells" / "evidence" / "cells_rloo_seed0.json"
    stored = json.loads(cell.read_text(encoding="utf-8"))["config"]
    assert trained.digest_of("cells", "rloo") == stored
    written = trained.config_of

    def with_policies(experiment: str, *variants: str) -> str:
        text: str = written(experiment, *variants)
        assert "\nvariants:" in f"\n{text}"
        return f"\n{text}".replace("\nvariants:", "\npolicies:")

    monkeypatch.setattr(trained, "config_of", with_policies)
    assert trained.digest_of("cells", "rloo") != stored
    monkeypatch.setitem(config_file.STORED_KEYS, "policies", "arms")
    assert trained.digest_of("cells", "rloo") == stored


def test_a_renamed_config_key_keeps_the_config_of_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(ROOT / "training/configs/quick.yaml")
    before = run_digest(config)
    monkeypatch.setattr(config_file, "to_builtins", lambda _: {"policies": 1, "rl": [{"staleness": 2}]})
    monkeypatch.setitem(config_file.STORED_KEYS, "policies", "arms")
    monkeypatch.setitem(config_file.STORED_KEYS, "staleness", "max_policy_lag")
    renamed_keys = run_digest(config)
    monkeypatch.setattr(config_file, "to_builtins", lambda _: {"arms": 1, "rl": [{"max_policy_lag": 2}]})
    assert renamed_keys == run_digest(config) != before
    assert with_stored_keys([{"a": {"policies": None}}]) == [{"a": {"arms": None}}]
