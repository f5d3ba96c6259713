"""Streams by name: pinned, so that a run of today repeats tomorrow."""

import itertools

import numpy as np
import pytest

from selfcest_env.seeding import stream_seed, turn_seed
from selfcest_env.types import ROOT, AgentId


def test_pinned_values():
    assert [stream_seed(), stream_seed("a", 1), stream_seed("a1"), turn_seed(0, ROOT, 0)] == [
        8238016292129134938,
        4019994849744593018,
        2281408005115673458,
        21622017611810433,
    ]


def test_an_integer_of_numpy_names_the_stream_of_python_s():
    assert turn_seed(np.int64(5), ROOT, np.uint8(1)) == turn_seed(5, ROOT, 1)
    with pytest.raises(TypeError):
        stream_seed(1.5)


def test_types_and_splits_are_kept_apart():
    names = [
        ("a", 1),
        ("a1",),
        ("a", "1"),
        ("1", "a"),
        ("a", 1, ""),
        (ROOT,),
        ("root",),
        (),
        ("",),
        ("ab",),
        ("a", "b"),
    ]
    assert len({stream_seed(*name) for name in names}) == len(names)
    assert all(0 <= stream_seed(*name) < 2**63 for name in names)


def test_every_part_of_a_turn_matters():
    agents = [ROOT, AgentId((0,)), AgentId((0, 1)), AgentId((1, 0)), AgentId((10,))]
    keys = list(itertools.product((0, 1, -1), agents, (0, 1), ("factual", "coma"), (0, 1)))
    assert len({turn_seed(*key) for key in keys}) == len(keys)
    assert turn_seed(3, ROOT, 1) == turn_seed(3, ROOT, 1, "factual", 0)
