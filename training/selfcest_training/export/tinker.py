"""Builds the rows that Tinker's `forward_backward` takes: one `Datum` for each context, stored as JSON lines.

Tinker's losses are sums over the tokens of all rows. So an advantage times the weight of its token in our loss gives
the sum of our learner in each loss that is linear in a positive factor of the advantage: `importance_sampling`, `ppo`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from selfcest_env.errors import ConfigError, RecordError, install_hint
from selfcest_env.record import read_json_lines
from selfcest_training.export.stored import CreditedSamples, list_temperatures
from selfcest_training.files import atomic_write

try:
    import tinker
except ImportError as error:
    raise ConfigError(f"{error}; run: {install_hint('tinker')}") from error

LOSS_INPUTS = ("target_tokens", "logprobs", "advantages")


def build_datums(data: CreditedSamples) -> list[tinker.Datum]:
    """Build one datum per context, in order. Position t of a context of T ids predicts id t + 1, so T - 1 are left.

    `logprobs` and `advantages` are 0 where the next id is not trained. A token with advantage 0 adds nothing.

    Raises:
        ConfigError: tokens were sampled at another temperature than 1, at which Tinker computes log-probs.
    """
    temperatures = list_temperatures(data.samples)
    if temperatures != [1.0]:
        raise ConfigError(
            f"the file has tokens of temperatures {temperatures}; expected [1.0], at which Tinker computes log-probs; "
            "export a run with rl.temperature: 1.0"
        )
    datums = []
    for sample in data.samples:
        weighted = np.where(sample.loss_mask, sample.advantages * sample.weight, 0).astype(np.float32)
        datums.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(sample.token_ids[:-1].tolist()),
                loss_fn_inputs={
                    "target_tokens": sample.token_ids[1:].astype(np.int64),
                    "logprobs": np.where(sample.loss_mask, sample.behavior_logprobs, 0)[1:].astype(np.float32),
                    "advantages": weighted[1:],
                },
            )
        )
    return datums


def write_datums(path: Path, datums: Sequence[tinker.Datum]) -> None:
    """Write datums to a file of JSON lines, atomically."""
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        for datum in datums:
            inputs = {name: datum.loss_fn_inputs[name].data for name in LOSS_INPUTS}
            file.write(json.dumps({"model_input": datum.model_input.to_ints(), "loss_fn_inputs": inputs}) + "\n")


def read_datums(path: Path) -> list[tinker.Datum]:
    """Read the file of `write_datums`. Raises `RecordError` for any other file."""
    datums = []
    for number, row in read_json_lines(path):
        try:
            inputs = {name: row["loss_fn_inputs"][name] for name in LOSS_INPUTS}
            tokens = row["model_input"]
            lengths = {len(tokens), *(len(values) for values in inputs.values())}
        except (KeyError, TypeError) as error:
            raise RecordError(f"{path}, line {number} is no datum of `selfcest export --format tinker`") from error
        if len(lengths) != 1:
            raise RecordError(f"{path}, line {number} has lists of lengths {sorted(lengths)}; expected one length")
        datums.append(tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens), loss_fn_inputs=inputs))
    return datums
