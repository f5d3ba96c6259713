"""Questions over keyed documents: instances, calls and clones by hand."""

import numpy as np
import pytest

from selfcest_env.errors import ConfigError
from selfcest_env.kernel import Kernel
from selfcest_env.rules import Rules
from selfcest_env.tasks import Style
from selfcest_env.tasks.ledger_qa import LedgerDocument, LedgerQA, LedgerQuery, parse, read_ledger
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import ROOT, Delegate, Limits, Task, Usage
from selfcest_env.views import observe


def transcript(task: Task, style: Style, limits: Limits) -> list[str]:
    """What every agent wrote, in tree order of acting."""
    protocol, texts = TerseProtocol(), list[str]()
    kernel = Kernel(task, Rules(limits, protocol, WordCounter()))
    while not kernel.done:
        agent = kernel.ready()[0]
        proposal = LedgerQA().propose(observe(kernel, agent), np.random.default_rng(0), style)
        texts.append(protocol.render(proposal.action, proposal.thought))
        kernel.step(agent, proposal.action, Usage(10), texts[-1])
    assert kernel.agents[ROOT].reply == task.answer
    return texts


def test_sum_by_hand() -> None:
    # F: 1 + 9 = 10; B: 3 + 5 = 8; in all 18.
    task = Task("t", "?FB", "8", "ledger_qa", {"B": "35", "K": "777", "F": "19"})
    call, *rest = transcript(task, Style.DELEGATE, Limits())
    action = TerseProtocol().parse(call)
    assert isinstance(action, Delegate)
    assert [request.shared_context for request in action.requests] == [("F",), ("B",)]
    assert rest == ["1190<ans>0<end>", "3358<ans>8<end>", "a00b88<ans>8<end>"]
    read = transcript(task, Style.READ, Limits(max_reads=4))
    assert read[0] == "<read>FB</read>"
    assert len(read) == 2
    assert transcript(task, Style.SOLVE, Limits(max_depth=0)) == read[1:]


def test_chain_by_hand() -> None:
    # B names K, K names F: 3 + 5 = 8, 7 + 7 = 14, in all 22.
    task = Task("t", "?B>2", "2", "ledger_qa", {"F": "B9", "B": "K35", "K": "F77"})
    written = transcript(task, Style.DELEGATE, Limits())
    assert [text.split("<")[1] for text in written] == ["call>>@B", "ans>K8", "call>>@K", "ans>F4", "ans>2"]
    assert written[1] == "3358<ans>K8<end>"
    assert written[3] == "7774<ans>F4<end>"
    read = transcript(task, Style.READ, Limits(max_reads=4))
    assert [text.split("<")[1] for text in read] == ["read>B", "read>K", "ans>2"]


def test_draws() -> None:
    rng = np.random.default_rng(0)
    for source in (LedgerQA(), LedgerQA(mode="chain", min_hops=3, max_hops=3), LedgerQA(phrasing="plain")):
        for _ in range(100):
            task = source.draw(rng)
            query = parse(task.prompt)
            assert query is not None
            assert 4 <= len(task.context) <= 12
            ledgers = {key: read_ledger(text) for key, text in task.context.items()}
            assert all(3 <= len(ledger.digits) <= 6 for ledger in ledgers.values())
            keys = list(query.keys)
            while len(keys) < query.visits:
                keys.append(ledgers[keys[-1]].next_key)
            assert len(set(keys)) == query.visits == task.metadata["size"]
            assert task.answer == str(sum(sum(ledgers[key].digits) for key in keys) % 10)


def test_named_documents_never_exceed_those_there_are() -> None:
    source, rng = LedgerQA(min_documents=2, max_documents=3, min_named=2, max_named=4), np.random.default_rng(0)
    assert {(task.metadata["documents"], task.metadata["size"]) for task in (source.draw(rng) for _ in range(100))} == {
        (2, 2),
        (3, 2),
        (3, 3),
    }


@pytest.mark.parametrize(
    ("query", "terse"),
    [
        (LedgerQuery("sum", ("B", "F"), 2, "terse"), "?BF"),
        (LedgerQuery("chain", ("B",), 3, "terse"), "?B>3"),
        (LedgerQuery("chain", (), 1, "terse"), ">"),
    ],
)
def test_phrasings_say_the_same(query: LedgerQuery, terse: str) -> None:
    assert query.write() == terse
    assert parse(terse) == query
    plain = query._replace(phrasing="plain")
    assert parse(plain.write()) == plain


def test_ledgers_in_both_phrasings() -> None:
    assert LedgerDocument((3, 5), "K").write("terse") == "K35"
    assert LedgerDocument((3, 5), "K").write("plain") == "Next ledger: K. Entries: 3, 5."
    for ledger in (LedgerDocument((3, 5), "K"), LedgerDocument((0,))):
        assert all(read_ledger(ledger.write(phrasing)) == ledger for phrasing in ("terse", "plain"))
    assert read_ledger("nothing to see") == LedgerDocument(())


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"mode": "sums"}, "LedgerQA.mode is 'sums'. Did you mean 'sum'? Expected one of sum, chain"),
        ({"max_documents": 53}, "LedgerQA.max_documents is 53; expected a whole number from 1 to 52"),
        ({"min_documents": 1}, "min_named is 2, above min_documents = 1"),
        ({"min_length": 0}, "LedgerQA.min_length is 0"),
    ],
)
def test_bad_knobs(knobs: dict, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LedgerQA(**knobs)
    assert said in str(caught.value)
