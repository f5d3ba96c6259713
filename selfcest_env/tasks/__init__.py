"""The registry of task sources. A source draws tasks, and an expert source also demonstrates how to solve them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfcest_env.plugin import Registry, build
from selfcest_env.tasks.source import ExpertSource, Proposal, Style, TaskSource

SOURCES = Registry(
    TaskSource,
    "task source",
    "selfcest.task_source",
    {
        "arithmetic": "selfcest_env.tasks.arithmetic:Arithmetic",
        "range_sum": "selfcest_env.tasks.range_sum:RangeSum",
        "ledger_qa": "selfcest_env.tasks.ledger_qa:LedgerQA",
        "long_ledgers": "selfcest_env.tasks.long_ledgers:LongLedgers",
        "ledger_pairs": "selfcest_env.tasks.ledger_pairs:LedgerPairs",
        "priced_ledgers": "selfcest_env.tasks.priced_ledgers:PricedLedgers",
        "keyed_cells": "selfcest_env.tasks.keyed_cells:KeyedCells",
        "offers": "selfcest_env.tasks.offers:Offers",
        "wide_tables": "selfcest_env.tasks.wide_tables:WideTables",
        "quote": "selfcest_env.tasks.quote:Quote",
        "mixture": "selfcest_env.tasks.mixture:Mixture",
        "hotpotqa": "selfcest_env.tasks.hotpotqa:HotpotQA",
        "two_wiki": "selfcest_env.tasks.two_wiki:TwoWiki",
        "two_wiki_tables": "selfcest_env.tasks.two_wiki_tables:TwoWikiTables",
        "musique": "selfcest_env.tasks.musique:Musique",
        "babi": "selfcest_env.tasks.babi:Babi",
        "room_stories": "selfcest_env.tasks.room_stories:RoomStories",
        "memory_steps": "selfcest_env.tasks.memory:MemorySteps",
        "distractors": "selfcest_env.tasks.long_context:Distractors",
        "babilong": "selfcest_env.tasks.long_context:Babilong",
        "questions": "selfcest_env.tasks.qa:UserQuestions",
        "aime": "selfcest_env.tasks.aime:AIME",
        "countdown": "selfcest_env.tasks.countdown:Countdown",
        "countdown_file": "selfcest_env.tasks.countdown:CountdownFile",
        "gsm8k": "selfcest_env.tasks.gsm8k:GSM8K",
        "math": "selfcest_env.tasks.math:Math",
        "reasoning_gym": "selfcest_env.tasks.reasoning_gym:ReasoningGym",
        "hashed_split": "selfcest_env.tasks.splits:HashedSplit",
    },
)


def make_source(name: str, **options: Any) -> TaskSource:
    """Return the source `name`, a registered name or `package.module:Class`, with these options.

    An option that is itself a source (`source` of `hashed_split`, `sources` of `mixture`) may be a mapping with `name`
    and the options of that source.
    """
    return build(SOURCES.load(name), _build_options(options), where=name)


def source_of_config(name: str, options: Mapping[str, Any], where: str) -> TaskSource:
    """Return the source of a config section with `name` and `options`.

    Args:
        name: a registered name or `package.module:Class`.
        options: options of the source.
        where: path of the section in the config, with which messages begin.
    """
    return SOURCES.make(name, _build_options(options), where=f"{where}.options")


def _build_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _build_nested(value) for key, value in options.items()}


def _build_nested(value: Any) -> Any:
    """Build the sources inside the value of an option."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return make_source(value["name"], **{key: item for key, item in value.items() if key != "name"})
    return [_build_nested(item) for item in value] if isinstance(value, (list, tuple)) else value


__all__ = ["SOURCES", "ExpertSource", "Proposal", "Style", "TaskSource", "make_source", "source_of_config"]
