"""What is stored is found again: literal keys, digests and names of every stored form, also after every class has moved.

The numbers were taken before classes and fields declared their stored names. One that changes means that stored studies,
cells or checkpoints are not found any more: mend the stored name, not the number.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from records import three_agents
from study_players import OneClone

from selfcest_agents.openai_client import ServerConfig
from selfcest_env.graders import Grade
from selfcest_env.graders.grade import Part
from selfcest_env.graders.qa import Overlap
from selfcest_env.plugin import PlugIn
from selfcest_env.protocol import Note
from selfcest_env.record import to_json
from selfcest_env.stored import stored_fields, to_stored
from selfcest_env.tasks import Style
from selfcest_env.text.wordings import Tell, TellBoard, TellClones, TellTurns
from selfcest_env.types import Limits, Status
from selfcest_training import config_file
from selfcest_training.config_file import load_config, parse_as, run_digest, with_stored_keys
from selfcest_training.evaluation.config import StudyConfig
from selfcest_training.evaluation.decision import Decisions, Means
from selfcest_training.evaluation.play import Study
from selfcest_training.evaluation.playbook import Bullet, Playbook
from selfcest_training.evaluation.policies import ModelPolicy, ServerPolicy, digest
from selfcest_training.evaluation.results import Place, Result, Unplayable, parse_result, write_result, write_unplayable
from selfcest_training.evaluation.strategies import STORED_NAMES, STRATEGIES, Strategy, find_strategy, make_strategy
from selfcest_training.families import Bucket
from selfcest_training.marl.bench.entries import ENTRIES
from selfcest_training.marl.bench.runs import Run, load, settings_of
from selfcest_training.run.checkpoint import Manifest, TrainState
from selfcest_training.shipped import Manifest as ShippedManifest
from selfcest_training.stages.base import Stages
from selfcest_training.stages.clpo import Clpo, Original
from selfcest_training.stages.curriculum import Curriculum
from selfcest_training.stages.outages import Outages

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs" / "evidence"
sys.path.insert(0, str(ROOT / "tests" / "env"))
from renamed import renamed

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
    "tasks": {"ledger": {"name": "ledger_qa"}},
    "cells": [{"family": "ledger", "size": "4", "options": {"min_documents": 4, "max_documents": 4}}],
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
        "planner": {"options": {"rounds": 3, "workers": 2}},
        "playbook": {"options": {"file": "book.json"}},
        "board": {"options": {"posts": 5}},
        "outside": {"name": "study_players:OneClone", "options": {"clones": 2}},
    },
}
PLAYBOOK = Playbook((Bullet("root-1", "Add.", helpful=2),), added=1, tasks=("t",))
# Digests of the keys of all results and episodes of a strategy and, after its name, of its errorless player's style.
STUDY_KEYS = {
    "plain": "0c8b0eb24095d10a",
    "delegate": "feafd6904d6d7e2b",
    "delegate delegate": "a94ce6dfc73c9649",
    "monolithic": "5a6b752c5c0944b5",
    "monolithic solve": "ee9a598cb54c1c25",
    "monolithic_read": "9a3de4e3a29ebeeb",
    "monolithic_read read": "c80d94c93823903f",
    "self_consistency": "86359eb40c0ebeff",
    "self_consistency read": "6f88d302d433cb45",
    "best_of_n": "99ae18b744dee141",
    "best_of_n solve": "d26ad08dcddf8982",
    "spawn_join": "a026a0da87521f35",
    "map_reduce": "ed074e921f0f9c94",
    "oracle_decomposition": "27521cdbe80bb4ef",
    "oracle_decomposition delegate": "7e3a42b8662710eb",
    "v0_router": "9c4d97509a4bc646",
    "always_delegates": "d515df596f3ecb59",
    "always_delegates delegate": "415c019250409367",
    "never_delegates": "4fa675054bebe5c6",
    "never_delegates read": "82e6ec75c370afd4",
    "turn_limit": "d97b778a9cb0ef9a",
    "turn_extension": "835cb3ccaafd5ef4",
    "thread_count": "b161a3a26e6e6ee5",
    "decide_first": "35b4d46d2a2af35c",
    "modes": "542d48cbb4c56548",
    "scale": "0721fab6bc8ebb45",
    "bandit": "7821cfaf87a74e80",
    "planner": "8fabd69a3194865f",
    "playbook": "7c2c061b08ab84c6",
    "board": "904d281385c3a439",
    "outside": "a8a501dc3579a8cd",
}


def our_classes() -> list[type]:
    """All strategies of this project, and all classes that declare stored names."""
    classes = {find_strategy(name) for name in STRATEGIES} | {Strategy}
    for module in [module for name, module in sys.modules.items() if name.startswith("selfcest_")]:
        for value in vars(module).values():
            if isinstance(value, type) and "__stored_name__" in vars(value):
                classes.add(value)
    return sorted(classes, key=lambda cls: (cls.__module__, cls.__qualname__))


@pytest.fixture(params=["today", "moved"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Everything under today's names of classes and modules, and under others."""
    yield request.param


def keys_of(study: Study) -> dict[str, str]:
    for name in ("_judge", "_costs"):
        vars(study).pop(name, None)
    keys: dict[str, list[tuple[str, str]]] = {}
    for block in study.blocks():
        name = block.strategy if block.style is None else f"{block.strategy} {block.style}"
        for item in study._keyed(block):
            keys.setdefault(name, []).append((item.key, item.played))
    return {name: digest(found)[:16] for name, found in keys.items()}


def test_keys_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.json").write_text(PLAYBOOK.to_json(), encoding="utf-8")
    study = Study(parse_as(StudyConfig, STUDY))
    assert set(STUDY["strategies"]) == {*STRATEGIES, "outside"}, "a new strategy belongs into the table"
    assert keys_of(study) == STUDY_KEYS
    with renamed(our_classes()):
        assert keys_of(study) == STUDY_KEYS
