"""The numeric tests hold on processors other than this one: each library is told to compute as on an older one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    *(f"tests/agents/test_{name}.py" for name in ("lora", "packed_linear", "prefix_store", "transformers_engine")),
    *(f"tests/training/test_{name}.py" for name in ("batch_and_losses", "forward", "losses", "models", "tree_rows")),
]
OLDER = {
    "2013": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "2008": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}


@pytest.mark.slow
@pytest.mark.parametrize("year", OLDER)
def test_numbers_agree_on_an_older_processor(year: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | OLDER[year], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
