"""Range sums: the digits of pi from an independent spigot, prompts and thoughts by hand."""

import numpy as np
import pytest

from selfcest_env.errors import ConfigError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Reply
from selfcest_env.rules import Rules
from selfcest_env.tasks import Style
from selfcest_env.tasks.range_sum import PI_DIGITS, RangeQuery, RangeSum, parse
from selfcest_env.tasks.source import Proposal, add_up_replies, read_digit
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Answer, CloneRequest, Delegate, Limits, Status, Task
from selfcest_env.views import Observation, observe


def spigot(count: int) -> str:
    """Gibbons' unbounded spigot: the first digits of pi, 3 included."""
    q, r, t, k, n, m = 1, 0, 1, 1, 3, 3
    digits = ""
    while len(digits) < count:
        if 4 * q + r - t < n * t:
            digits += str(n)
            q, r, n = 10 * q, 10 * (r - n * t), 10 * (3 * q + r) // t - 10 * n
        else:
            q, r, t, k, n, m = q * k, (2 * q + r) * m, t * m, k + 1, (q * (7 * k + 2) + r * m) // (t * m), m + 2
    return digits


def test_digits_of_pi() -> None:
    assert len(PI_DIGITS) == 100
    assert spigot(101) == "3" + PI_DIGITS


def first_turn(prompt: str) -> Observation:
    return observe(Kernel(Task("t", prompt, "", "range_sum"), Rules(Limits(), TerseProtocol(), WordCounter())), ROOT)


def test_by_hand() -> None:
    # pi = 3.14159265..., so digits 3 to 6 are 1 5 9 2; with 3 added modulo 10: 4 8 2 5, in all 19.
    query = parse("3:[3]-[6]")
    assert query == RangeQuery(3, 3, 6, "terse")
    assert query.answer == 9
    source, rng = RangeSum(pieces=(5,)), np.random.default_rng(0)
    solved = source.propose(first_turn("3:[3]-[6]"), rng, Style.SOLVE)
    assert solved == Proposal(Answer("9"), "[3]44[4]82[5]24[6]59")
    assert TerseProtocol().render(solved.action, solved.thought) == "[3]44[4]82[5]24[6]59<ans>9<end>"
    called = source.propose(first_turn("3:[3]-[6]"), rng, Style.DELEGATE)
    assert called == Proposal(Delegate((CloneRequest("3:[3]-[5]"), CloneRequest("3:[6]-[6]"))))
    assert TerseProtocol().render(called.action) == "<call>3:[3]-[5]<sep>3:[6]-[6]</call>"


def test_the_size_is_shown_restated_and_left_out_of_the_parts() -> None:
    # 4 terms, rounded up to fives: 5. The terms are those of the test above.
    source, rng = RangeSum(pieces=(5,), size_step=5), np.random.default_rng(0)
    assert parse("3:[3]-[6];[5]") == RangeQuery(3, 3, 6, "terse", 5)
    assert source.propose(first_turn("3:[3]-[6];[5]"), rng, Style.SOLVE) == Proposal(
        Answer("9"), "[5][3]44[4]82[5]24[6]59"
    )
    assert source.propose(first_turn("3:[3]-[6];[5]"), rng, Style.DELEGATE) == Proposal(
        Delegate((CloneRequest("3:[3]-[5]"), CloneRequest("3:[6]-[6]"))), "[5]"
    )


@pytest.mark.parametrize(
    ("step", "length", "shown"), [(0, 17, 0), (1, 17, 17), (5, 16, 20), (5, 20, 20), (5, 21, 25), (10, 96, 99)]
)
def test_shown_sizes(step: int, length: int, shown: int) -> None:
    for phrasing in ("terse", "plain"):
        source = RangeSum(min_length=length, max_length=length, size_step=step, phrasing=phrasing)
        query = parse(source.draw(np.random.default_rng(0)).prompt)
        assert query is not None
        assert query.size == shown
        assert query.end - query.start + 1 == length


def test_combining_labels_values_and_running_totals() -> None:
    assert add_up_replies([2, 8, 4], "terse") == Proposal(Answer("4"), "a22b80c44")
    assert add_up_replies([2, 8], "plain") == Proposal(Answer("0"), "clone 1: 2 (2); clone 2: 8 (0)")
    replies = [
        Reply(text=" 7 "),
        Reply(failure=Status.OUT_OF_TOKENS),
        Reply(text="77"),
        Reply(text="seven"),
        Reply("٣"),
    ]
    assert [read_digit(reply) for reply in replies] == [7, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("start", "end", "piece", "spans"),
    [
        (4, 20, 5, [(4, 5), (6, 10), (11, 15), (16, 20)]),
        (5, 11, 5, [(5, 5), (6, 10), (11, 11)]),
        (6, 9, 10, [(6, 9)]),
        (1, 10, 10, [(1, 10)]),
        (99, 99, 5, [(99, 99)]),
    ],
)
def test_pieces_end_at_multiples(start: int, end: int, piece: int, spans: list[tuple[int, int]]) -> None:
    assert [(part.start, part.end) for part in RangeQuery(0, start, end, "terse").cut(piece)] == spans


def test_both_phrasings_ask_the_same() -> None:
    for query in (RangeQuery(3, 4, 20, "terse"), RangeQuery(0, 1, 99, "plain"), RangeQuery(3, 4, 20, "plain", 20)):
        assert parse(query.write()) == query
    assert RangeQuery(3, 4, 20, "terse").write() == "3:[4]-[20]"
    assert [parse(text) for text in ("3:[4]-[3]", "3:[0]-[3]", "13:[4]-[5]", "3:[4]-[100]", "3:[4]-[5]x")] == [None] * 5


def test_draws_cover_the_lengths_and_repeat_with_the_seed() -> None:
    source = RangeSum(min_length=2, max_length=5)
    tasks = [source.draw(np.random.default_rng(seed)) for seed in range(100)]
    assert {task.metadata["size"] for task in tasks} == {2, 3, 4, 5}
    assert tasks == [source.draw(np.random.default_rng(seed)) for seed in range(100)]
    assert RangeSum(min_length=99, max_length=99).draw(np.random.default_rng(0)).prompt.endswith("[1]-[99]")


@pytest.mark.parametrize(
    "knobs",
    [
        {"min_length": 0},
        {"max_length": 100},
        {"min_length": 9, "max_length": 8},
        {"pieces": ()},
        {"pieces": (0,)},
        {"size_step": -1},
    ],
)
def test_bad_knobs(knobs: dict) -> None:
    with pytest.raises(ConfigError, match=r"(RangeSum\.)?(min_length|max_length|pieces(\[0\])?|size_step) is"):
        RangeSum(**knobs)
