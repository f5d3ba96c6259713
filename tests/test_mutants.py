"""The mutants are small, whole and of what decides; the list of what is mutated names files that there are."""

import ast

import mutants
import pytest

SOURCE = '''\
"""Text of 3 words."""


def fits(room: int | None, cost: int, reserve: int = 2) -> bool:
    assert cost > 0
    if room is None:
        raise ValueError(f"{cost + 1} is é")
    return max(cost, 0) + reserve <= room and not cost == 7
'''


def test_every_decision_is_changed_and_nothing_else() -> None:
    before = SOURCE.splitlines()
    lines = []
    for mutant in mutants.mutants(SOURCE):
        after = mutant.splitlines()
        (changed,) = [i for i, line in enumerate(before) if after[i] != line]
        lines.append(after[changed].strip())
    assert sorted(lines) == sorted(
        [
            "def fits(room: int | None, cost: int, reserve: int = (3)) -> bool:",
            "if (room is not None):",
            "return (max(cost, 0) + reserve <= room or not cost == 7)",
            "return (max(cost, 0) + reserve < room) and not cost == 7",
            "return (max(cost, 0) + reserve > room) and not cost == 7",
            "return (max(cost, 0) - reserve) <= room and not cost == 7",
            "return (min(cost, 0)) + reserve <= room and not cost == 7",
            "return max(cost, (1)) + reserve <= room and not cost == 7",
            "return max(cost, 0) + reserve <= room and (cost == 7)",
            "return max(cost, 0) + reserve <= room and not (cost != 7)",
            "return max(cost, 0) + reserve <= room and not cost == (8)",
        ]
    )


@pytest.mark.parametrize("module", mutants.TESTS)
def test_what_is_mutated_has_tests(module: str) -> None:
    source = (mutants.ROOT / module).read_text()
    found = mutants.mutants(source)
    assert found
    assert len({source, *found}) == len(found) + 1
    assert all(ast.parse(text) for text in found[:: max(1, len(found) // 5)])
    assert all((mutants.ROOT / test).is_file() for test in mutants.TESTS[module])
