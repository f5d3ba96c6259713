"""Rows for Tinker are of its own types and sum to our loss; in the environment that has Tinker."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from records import agent, three_agents, turn
from test_export import EPISODES, data, sums
from typer.testing import CliRunner

from selfcest_cli.main import app
from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.record import write_episode
from selfcest_env.types import ROOT
from selfcest_training.credit import Rloo
from selfcest_training.credit.offline import group_episodes
from selfcest_training.export.stored import build_credited_samples
from selfcest_training.learner.options import Denominator

if find_spec("tinker") is not None:
    import tinker
    from tinker.types import ForwardBackwardInput

    from selfcest_training.export.tinker import build_datums, read_datums, write_datums

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("tinker") is None, reason="Tinker is not installed; docs/export.md says how, .ci/run does it"
    ),
]


@pytest.mark.parametrize("denominator", list(Denominator))
def test_a_datum_per_context_is_read_back_and_sums_to_our_loss(tmp_path: Path, denominator: Denominator) -> None:
    made = data("rloo", denominator)
    write_datums(tmp_path / "d.jsonl", build_datums(made))
    datums = read_datums(tmp_path / "d.jsonl")
    assert len(datums) == len(made.samples) == 6
    found = {}
    for datum, sample in zip(datums, made.samples, strict=True):
        assert isinstance(datum, tinker.Datum)
        ids = [*datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].data[-1]]
        assert ids == sample.token_ids.tolist()
        assert datum.loss_fn_inputs["target_tokens"].data == ids[1:]
        logprobs = datum.loss_fn_inputs["logprobs"].data
        assert logprobs == np.where(sample.loss_mask, sample.behavior_logprobs, 0)[1:].tolist()
        for token, slope in zip(ids[1:], datum.loss_fn_inputs["advantages"].data, strict=True):
            if slope:
                found[sample.episode_id, token] = slope
    # The slope of -(ratio * advantages).sum() by a log-prob at ratio 1 is minus the advantage.
    assert found == pytest.approx(sums(made.samples), rel=1e-6)


def test_the_request_of_the_sdk_takes_the_datums() -> None:
    datums = build_datums(data())
    for loss in ("importance_sampling", "ppo"):
        request = ForwardBackwardInput(data=datums, loss_fn=loss)
        assert len(request.data) == len(datums)


def test_other_temperatures_are_refused() -> None:
    hot = three_agents("s0.g0.e0", 1.0)
    hot = replace(hot, agents=(*hot.agents[:2], agent(ROOT.child(1), turn((7,), (16, 17), temperature=0.5))))
    stored = group_episodes([hot, EPISODES[1]], "")
    made = build_credited_samples(stored, Rloo(), denominator=Denominator.CONSTANT, constant=1.0)
    with pytest.raises(ConfigError, match=r"temperatures \[0.5, 1.0\]; expected \[1.0\]"):
        build_datums(made)


def test_the_command_writes_them_and_other_files_are_refused(tmp_path: Path) -> None:
    file, out = tmp_path / "e.jsonl", tmp_path / "rows.jsonl"
    file.write_text("".join(map(write_episode, EPISODES)), encoding="utf-8")
    arguments = ["export", str(file), "--format", "tinker", "--credit", "rloo", "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "6 contexts of 2 episodes, 18 trained tokens" in result.output
    assert len(read_datums(out)) == 6
    with pytest.raises(RecordError, match=r"e.jsonl, line 1 is no datum"):
        read_datums(file)
    out.write_text('{"model_input": [1], "loss_fn_inputs": {"target_tokens": [], "logprobs": [], "advantages": []}}\n')
    with pytest.raises(RecordError, match=r"line 1 has lists of lengths \[0, 1\]"):
        read_datums(out)
