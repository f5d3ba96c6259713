"""The fuzzer of `tests/stress/fuzz.py`: a small run over every target, and that it would find what it looks for."""

import random
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "tests" / "stress" / "fuzz.py"
FUZZ = SimpleNamespace(**runpy.run_path(str(FILE), run_name="fuzz"))
TARGETS = FUZZ.targets()
FEW = [
    name for name in TARGETS if not name.startswith("chat.") or name in ("chat.chatml", "chat.mistral", "chat.vicuna")
]


def findings(results: dict[str, Any]) -> list[str]:
    return [line for found in results.values() for line in found.findings]


def test_a_thousand_inputs_find_nothing() -> None:
    results = FUZZ.run({name: TARGETS[name] for name in FEW}, seed=1, inputs=1000, timed=False)
    assert findings(results) == []
    assert sum(found.inputs for found in results.values()) >= 1000
    assert sum(found.refusals for found in results.values()) > 100


@pytest.mark.slow
def test_more_inputs_and_their_time_find_nothing() -> None:
    assert findings(FUZZ.run(TARGETS, seed=2, inputs=50_000)) == []


def fake(work: Any, long: Any = None, pieces: tuple[str, ...] = ("a",), shortest: int = 2000) -> dict[str, Any]:
    return {"fake": FUZZ.Target(lambda rng: rng.random(), work, long, pieces=pieces, shortest=shortest)}


def test_an_exception_is_a_finding_that_repeats() -> None:
    def work(drawn: float) -> bool:
        if drawn > 0.9:
            raise KeyError(drawn)
        return False

    found = FUZZ.run(fake(work), seed=3, inputs=200, timed=False)["fake"]
    assert 1 <= found.num_findings < 100
    (line,) = found.findings
    assert "KeyError in test_fuzz.py" in line
    index = int(line.partition("--first ")[2].split()[0])
    again = FUZZ.run(fake(work), seed=3, inputs=1, first=index, timed=False)["fake"]
    assert again.findings == found.findings
    assert FUZZ.run(fake(work), seed=3, inputs=index, timed=False)["fake"].num_findings == 0


def test_a_refusal_is_none() -> None:
    def work(_: float) -> bool:
        raise FUZZ.SelfcestError("no")

    found = FUZZ.run(fake(work), seed=0, inputs=5, timed=False)["fake"]
    assert (found.refusals, found.findings) == (5, [])


def test_what_grows_faster_than_its_length_is_found_and_what_does_not_is_not() -> None:
    def work(text: Any) -> bool:
        if isinstance(text, str):
            power = 2 if "b" in text else 1
            for _ in range(len(text) ** power // (4000 if power == 2 else 1)):
                pass
        return False

    found = FUZZ.run(fake(work, str, ("a", "b")), seed=0, inputs=1)["fake"]
    (line,) = found.findings
    assert "'b' repeated" in line
    assert found.exponent > 1.4, "a quadratic one, on a machine that may be busy"
    assert found.steepest == "b"


def test_memory_beyond_the_length_is_found() -> None:
    def work(text: Any) -> bool:
        return isinstance(text, str) and not bytearray(5000 * len(text))

    found = FUZZ.run(fake(work, str, shortest=200), seed=0, inputs=1)["fake"]
    assert any("memory, in bytes for a character" in line for line in found.findings)


def test_what_is_executed_is_noticed() -> None:
    FUZZ.run(fake(lambda _: False), seed=0, inputs=1, timed=False)
    assert FUZZ.control()
    found = FUZZ.run(fake(lambda _: bool(FUZZ.SENTINEL.touch())), seed=0, inputs=1, timed=False)["fake"]
    assert any("code of an input was executed" in line for line in found.findings)
    assert not FUZZ.SENTINEL.exists()


@pytest.mark.parametrize("family", ["chat.chatml", "chat.vicuna", "chat.plain-roles"])
def test_a_codec_that_lets_a_role_through_is_found(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roles are compared on ids, or in the text where they are plain text."""
    target = TARGETS[family]
    chat = FUZZ.chat_of(family.removeprefix("chat."))
    trusting = chat.codec._encoder.encode_trusted
    monkeypatch.setattr(chat.codec, "_encode_plain", trusting)
    drawn = [FUZZ.drawn(family, target, 0, i) for i in range(40)]
    caught = 0
    for item in drawn:
        try:
            target.work(item)
        except AssertionError:
            caught += 1
    assert caught > 10


def test_an_input_follows_from_seed_target_and_index_alone() -> None:
    target = TARGETS["hermes.parse"]
    first = [FUZZ.drawn("hermes.parse", target, 5, i) for i in range(20)]
    random.random()
    assert [FUZZ.drawn("hermes.parse", target, 5, i) for i in reversed(range(20))] == first[::-1]
    assert len(set(first)) > 15
