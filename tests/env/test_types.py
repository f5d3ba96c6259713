"""Limits say what is wrong with them; agent ids are paths."""

import pytest

from selfcest_env.errors import ConfigError
from selfcest_env.types import ROOT, AgentId, Limits, Status


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_turns": -1}, "Limits.max_turns is -1; expected a whole number >= 0, or null \\(null: unlimited\\)"),
        ({"total_tokens": True}, "Limits.total_tokens is True; expected"),
        ({"turn_tokens": 1.5}, "Limits.turn_tokens is 1.5; expected"),
        ({"answer_reserve": None}, "Limits.answer_reserve is None; expected a whole number >= 0$"),
        ({"total_tokens": 15}, "answer_reserve is 16, above total_tokens = 15"),
        ({"generated_tokens": 15}, "answer_reserve is 16, above generated_tokens = 15"),
        ({"context_tokens": 15}, "answer_reserve is 16, above context_tokens = 15"),
        ({"turn_tokens": 15}, "answer_reserve is 16, above turn_tokens = 15"),
        ({"turn_tokens": None, "total_tokens": None}, "a generation may never end"),
        ({"max_turns": None, "total_tokens": None}, "an episode may never end"),
        ({"total_tokens": None, "max_depth": None, "max_clones": None}, "a tree of clones may grow forever"),
        ({"reply_tokens": None}, "set reply_tokens"),
        ({"reply_tokens": None, "total_tokens": None, "context_tokens": 99}, "set reply_tokens"),
    ],
)
def test_impossible_limits(values, message):
    with pytest.raises(ConfigError, match=message):
        Limits(**values)


def test_possible_limits_at_the_edges():
    Limits(total_tokens=16, turn_tokens=16)  # exactly the reserve
    Limits(total_tokens=0, turn_tokens=0, answer_reserve=0, max_turns=0)
    Limits(total_tokens=None, reply_tokens=None)
    for name in ("max_depth", "max_clones", "max_clones_per_call"):
        assert not Limits(**{name: 0}).delegation
        assert Limits(**{name: None}).delegation
    assert not Limits(max_reads=0).reading
    assert Limits(max_reads=None).reading


@pytest.mark.parametrize("text", ["root", "root.0", "root.10.2"])
def test_agent_ids_round_trip(text):
    assert str(AgentId.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "roots", "root.", "root.-1", "root.01", "root.x", "root.²", "root.٣", "0.1", "Root"]
)
def test_bad_agent_ids(text):
    with pytest.raises(ValueError, match="agent id"):
        AgentId.parse(text)


def test_the_tree_orders_ids():
    ids = ["root", "root.0", "root.0.1", "root.1", "root.2", "root.10"]
    assert [str(a) for a in sorted(map(AgentId.parse, reversed(ids)))] == ids
    deep = AgentId.parse("root.0.1")
    assert (ROOT.parent, deep.parent, deep.depth) == (None, AgentId.parse("root.0"), 2)
    assert deep.is_under(deep)
    assert deep.is_under(ROOT)
    assert not ROOT.is_under(deep)
    assert not AgentId.parse("root.10").is_under(AgentId.parse("root.1"))


def test_all_but_two_statuses_are_endings():
    assert {status for status in Status if not status.is_terminal} == {Status.READY, Status.WAITING}
