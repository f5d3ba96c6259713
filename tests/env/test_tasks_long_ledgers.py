"""Sums over long ledgers: instances, every style's transcript by hand, and the bound on named entries."""

import numpy as np
import pytest

from selfcest_env.errors import ConfigError
from selfcest_env.kernel import Kernel
from selfcest_env.rules import Rules
from selfcest_env.tasks import Style
from selfcest_env.tasks.long_ledgers import LongLedgerQuery, LongLedgers, parse, read_entries
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Limits, Task, Usage
from selfcest_env.views import observe

CLONES = Limits(total_tokens=4000)
READS = Limits(total_tokens=4000, max_depth=0, max_reads=8)
FULL = Limits(total_tokens=4000, max_depth=0)


def transcript(task: Task, style: Style, limits: Limits, source: LongLedgers | None = None) -> list[str]:
    """What every agent wrote, in tree order of acting."""
    protocol, texts = TerseProtocol(), list[str]()
    kernel = Kernel(task, Rules(limits, protocol, WordCounter()))
    while not kernel.done:
        agent = kernel.ready()[0]
        proposal = (source or LongLedgers()).propose(observe(kernel, agent), np.random.default_rng(0), style)
        texts.append(protocol.render(proposal.action, proposal.thought))
        kernel.step(agent, proposal.action, Usage(10), texts[-1])
    assert kernel.agents[ROOT].reply == task.answer
    return texts


# C: 3 + 7 = 10. E: 9 + 8 = 17. X is not asked for. In all 27.
TASK = Task("t", "?[1]C[2]E", "7", "long_ledgers", {"C": "k3a7", "E": "k9a8", "X": "k1a1"})


def test_delegating_by_hand() -> None:
    assert transcript(TASK, Style.DELEGATE, CLONES) == [
        "<call>[1]@C<sep>[2]@E</call>",
        "k33a70<ans>0<end>",
        "k99a87<ans>7<end>",
        "a00b77<ans>7<end>",
    ]


def test_reading_one_by_one_by_hand() -> None:
    assert transcript(TASK, Style.READ, READS) == [
        "=00[1]C<read>C</read>",
        "k33a70,0=00[1]C[2]E<read>E</read>",
        "k99a87,0=77<ans>7<end>",
    ]
    # A total that is not 0 when the next ledger begins: 5, then 4 of its own, 9 in all.
    task = Task("t", "?[1]A[2]B", "9", "long_ledgers", {"A": "z5", "B": "z4"})
    assert transcript(task, Style.READ, READS)[1:] == ["z55,0=55[1]A[2]B<read>B</read>", "z44,5=49<ans>9<end>"]


def test_carrying_the_sum_by_hand() -> None:
    task = Task("t", "?[1]A[2]B[3]C", "2", "long_ledgers", {"A": "z5", "B": "z4", "C": "z3"})
    assert transcript(task, Style.READ, READS, LongLedgers(reading="carried")) == [
        "=0[1]A<read>A</read>",
        "[1],0z55=5[1]A[2]B<read>B</read>",
        "[2],5z49=9[2]B[3]C<read>C</read>",
        "[3],9z32=2[3]C<ans>2<end>",
    ]
    with pytest.raises(ConfigError, match="reading is 'carried' and phrasing is 'plain'"):
        LongLedgers(reading="carried", phrasing="plain")


def test_reading_at_once_and_full_texts_by_hand() -> None:
    at_once = LongLedgers(reading="at_once")
    thought = "[1]C0k33a70[2]E0k99a87<ans>7<end>"
    assert transcript(TASK, Style.READ, READS, at_once) == ["<read>CE</read>", thought]
    assert transcript(TASK, Style.SOLVE, FULL) == [thought]


# The same in words.
WORDS = Task(
    "t",
    "What is the last digit of the sum of all amounts in the ledgers C, E?",
    "7",
    "long_ledgers",
    {"C": "cups 3, lamps 7", "E": "cups 9, lamps 8", "X": "cups 1, lamps 1"},
)


def test_every_style_in_words_by_hand() -> None:
    source = LongLedgers(phrasing="plain")
    asked = "What is the last digit of the sum of all amounts in your ledger?"
    assert transcript(WORDS, Style.DELEGATE, CLONES, source) == [
        f"<call>{asked}@C<sep>{asked}@E</call>",
        "cups: 3 (3); lamps: 7 (0)<ans>0<end>",
        "cups: 9 (9); lamps: 8 (7)<ans>7<end>",
        "clone 1: 0 (0); clone 2: 7 (7)<ans>7<end>",
    ]
    lines = "C. cups: 3 (3); lamps: 7 (0). So far 0 + 0 = 0", "E. cups: 9 (9); lamps: 8 (7). So far 0 + 7 = 7"
    assert transcript(WORDS, Style.READ, READS, source) == [
        "<read>C</read>",
        f"{lines[0]}<read>E</read>",
        f"{lines[1]}<ans>7<end>",
    ]
    assert transcript(WORDS, Style.SOLVE, FULL, source) == [f"{lines[0]}\n{lines[1]}<ans>7<end>"]


def test_a_modulus_stands_in_every_question() -> None:
    task = Task("t", "?[1]C[2]E%5", "2", "long_ledgers", {"C": "k3a4", "E": "k2a3"})  # 7 + 5 = 12, and 12 mod 5 = 2
    assert transcript(task, Style.DELEGATE, CLONES) == [
        "<call>[1]%5@C<sep>[2]%5@E</call>",
        "k33a42<ans>2<end>",
        "k22a30<ans>0<end>",
        "a22b02<ans>2<end>",
    ]


def test_without_a_way_to_see_them_it_gives_up() -> None:
    # Two ledgers are named, and there is one clone and no reading.
    task = Task("t", "?[1]C[2]E", "?", "long_ledgers", dict(TASK.context))
    assert transcript(task, Style.READ, Limits(total_tokens=4000, max_clones=1)) == ["<ans>?<end>"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("?[1]C[2]E[3]X", LongLedgerQuery(("C", "E", "X"), 0, 10)),
        ("?[1]C%5", LongLedgerQuery(("C",), 0, 5)),
        ("[12]", LongLedgerQuery((), 12, 10)),
        ("[2]%7", LongLedgerQuery((), 2, 7)),
        (WORDS.prompt, LongLedgerQuery(("C", "E"), 0, 10, "plain")),
        ("What is the last digit of the sum of all amounts in the ledger C?", LongLedgerQuery(("C",), 0, 10, "plain")),
        ("What is the last digit of the sum of all amounts in your ledger?", LongLedgerQuery((), 1, 10, "plain")),
    ],
)
def test_questions_read_back(text: str, query: LongLedgerQuery) -> None:
    assert parse(text) == query
    assert query.write() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "?C",
        "?[1]c",
        "?[2]C",
        "?[1]C[1]E",
        "[100]",
        "?[1]C%1",
        "?[1]C%10",
        "?[1]C>2",
        "?[1]C x",
        "What is the sum of all amounts in your ledger?",
    ],
)
def test_other_questions_are_foreign(text: str) -> None:
    assert parse(text) is None


def test_entries() -> None:
    assert read_entries("k3a7") == (("k", 3), ("a", 7))
    assert read_entries("cups 3, lamps 7") == (("cups", 3), ("lamps", 7))
    assert [read_entries(text) for text in ("", "k", "k3a", "K3", "k33", "cups", "cups 3,", "cups 31")] == [()] * 8


@pytest.mark.parametrize(("phrasing", "modulus"), [("terse", 7), ("plain", 10)])
def test_draws(phrasing: str, modulus: int) -> None:
    source, rng = LongLedgers(max_entries=36, modulus=modulus, phrasing=phrasing), np.random.default_rng(0)
    last_ledgers_length = set[int]()
    for _ in range(300):
        task = source.draw(rng)
        query = parse(task.prompt)
        assert query is not None
        ledgers = {key: read_entries(text) for key, text in task.context.items()}
        named = [ledgers[key] for key in query.keys]
        lengths = [len(ledger) for ledger in named]
        assert 1 <= len(named) <= 6
        assert len(ledgers) == len(named) + 1
        assert all(2 <= length <= 24 for length in lengths)
        assert sum(lengths) == task.metadata["size"] <= 36
        # One alphabet for the whole task: a shorter ledger has the first fields of a longer one.
        longest = max((tuple(field for field, _ in ledger) for ledger in ledgers.values()), key=len)
        assert len(set(longest)) == len(longest)
        assert all(tuple(field for field, _ in ledger) == longest[: len(ledger)] for ledger in ledgers.values())
        assert task.answer == str(sum(digit for ledger in named for _, digit in ledger) % modulus)
        assert all(digit < modulus for ledger in named for _, digit in ledger)
        last_ledgers_length.add(lengths[-1] if len(named) == 6 else 0)
    # The last of six can be long: a part's number does not tell how long its ledger is.
    assert max(last_ledgers_length) > 20


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"max_named": 27}, "LongLedgers.max_named is 27; expected a whole number from 1 to 26"),
        ({"max_length": 27}, "LongLedgers.max_length is 27; expected a whole number from 1 to 26"),
        ({"max_named": 20, "unnamed": 7}, "unnamed is 7; expected a whole number from 0 to 6"),
        ({"modulus": 1}, "LongLedgers.modulus is 1; expected a whole number from 2 to 10"),
        ({"modulus": 5, "phrasing": "plain"}, "modulus is 5; expected 10 where phrasing is 'plain'"),
        ({"phrasing": "words"}, "phrasing is 'words'"),
        ({"reading": "at once"}, "Did you mean 'at_once'?"),
        (
            {"max_entries": 11},
            "max_entries is 11; expected null or at least max_named x min_length = 12",
        ),
    ],
)
def test_bad_knobs(knobs: dict, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LongLedgers(**knobs)
    assert said in str(caught.value)
