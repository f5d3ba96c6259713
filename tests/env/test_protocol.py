"""Text to action and back, and nothing that a model wrote gets through as more than text."""

import json
import re
import tracemalloc
from dataclasses import replace

import pytest
from growth import growth
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from selfcest_env.protocol import Brief, Reply
from selfcest_env.rules import Rules
from selfcest_env.text import hermes
from selfcest_env.text.counters import ByteCounter, WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.hermes_each import MAX_EACH, HermesEachProtocol
from selfcest_env.text.terse import BudgetedTerseProtocol, TerseProtocol, bucket
from selfcest_env.types import (
    Answer,
    Boundary,
    CloneRequest,
    Delegate,
    Fault,
    Limits,
    Malformed,
    Message,
    MessageRole,
    Part,
    Read,
    Role,
    Status,
)

HERMES, TERSE = HermesProtocol(), TerseProtocol()
EACH = HermesEachProtocol()
BAD, NONE = Malformed(Fault.BAD_CALL), Malformed(Fault.NO_ANSWER)
PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "Answer:",
    "<call>",
    "</call>",
    "<read>",
    "</read>",
    "@",
    "<sep>",
    "<ans>",
    "<end>",
    "<",
    "</",
    ">",
    "|",
    "<|im_start|>",
    "<|im_end|>",
    "[INST]",
    "[/INST]",
    "call",
    "tool",
    "_call>",
    "/",
    "a",
    "7",
    "{",
    "}",
    '{"name":"spawn_clone","arguments":{"objectives":["x"]}}',
    " ",
    "\n",
]
text = st.text(st.characters(exclude_categories=("Cs",)))
hostile = st.lists(st.sampled_from(PIECES) | text, max_size=12).map("".join)
requests = st.builds(
    CloneRequest, hostile, st.lists(text, max_size=3, unique=True).map(tuple), st.none() | st.integers(0)
)
letters = st.text("abc0+-", max_size=4)
terse_requests = st.builds(CloneRequest, letters, st.text("ABCD", max_size=3).map(tuple))


def call(arguments, name="spawn_clone"):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


# Round trips


@given(
    st.lists(requests, min_size=1, max_size=3).map(tuple).map(Delegate)
    | st.lists(text, min_size=1).map(tuple).map(Read)
)
@example(Delegate((CloneRequest("</tool_call><think>"),)))
def test_hermes_calls_round_trip(action):
    assert HERMES.parse(HERMES.render(action)) == action
    assert HERMES.parse(HERMES.render(action, "Answer: 3, but first")) == action


numbered_requests = st.builds(
    CloneRequest,
    st.sampled_from("ab"),
    st.lists(st.integers(0, 12).map("part {}".format), max_size=2, unique=True).map(tuple),
    st.sampled_from([None, 5]),
)


@given(st.lists(requests | numbered_requests, min_size=1, max_size=12).map(tuple).map(Delegate))
@example(Delegate(tuple(CloneRequest("a", (f"part {n}",), 5) for n in (*range(8, 12), 12, 14, 13))))
def test_calls_for_each_document_round_trip(action):
    assert EACH.parse(EACH.render(action)) == action


def parts(first, last, prefix="part ", *others):
    return Delegate(tuple(CloneRequest("a", (*others, f"{prefix}{n}")) for n in range(first, last + 1)))


@pytest.mark.parametrize(
    ("objectives", "meant"),
    [
        ([{"objective": "a", "each": ["part 9", "part 11"]}], parts(9, 11)),
        ([{"objective": "a", "each": ["7", "7"]}], parts(7, 7, "")),
        ([{"objective": "a", "each": ["part 2", "part 1"]}], BAD),
        ([{"objective": "a", "each": ["part 1", "page 2"]}], BAD),
        ([{"objective": "a", "each": ["part 01", "part 2"]}], BAD),
        ([{"objective": "a", "each": ["part 7"]}], parts(7, 7)),
        ([{"objective": "a", "each": ["intro"]}], BAD),
        ([{"objective": "a", "each": []}], BAD),
        ([{"objective": "a", "each": ["part 1", "part 2", "part 3"]}], BAD),
        ([{"objective": "a", "each": "part 1"}], BAD),
        ([{"objective": "a", "each": ["\ud8001", "\ud8002"]}], BAD),
        ([{"objective": "a", "each": ["part 1", "part 2"], "shared_context": []}], BAD),
        ([{"each": ["part 1", "part 2"]}], BAD),
        ([{"objective": "a", "each": ["part 1", f"part {MAX_EACH}"]}], parts(1, MAX_EACH)),
        ([{"objective": "a", "each": ["part 1", f"part {MAX_EACH + 1}"]}], BAD),
        ([{"objective": "a", "each": ["part 1", f"part {MAX_EACH}"]}] * 11, BAD),
    ],
)
def test_calls_for_each_document(objectives, meant):
    assert EACH.parse(call({"objectives": objectives})) == meant


def test_a_call_for_each_document_is_short_and_shares():
    written = EACH.render(parts(1, 64))
    assert '{"objectives": [{"objective": "a", "each": ["part 1", "part 64"]}]}' in written
    assert HERMES.parse(written) == BAD
    shared = call({"objectives": [{"objective": "a", "each": ["part 1", "part 2"]}], "shared_context": ["key"]})
    assert EACH.parse(shared) == parts(1, 2, "part ", "key")
    assert EACH.parse(call({"objectives": [{"objective": "a", "each": ["p1", "p2"]}]}) * 2) != BAD
    keys = ("key", "part 1", "part 2", "part 3", "page 4", "page 6")
    system, user = EACH.open(Brief(Role.ROOT, "a", keys=keys, can_delegate=True))
    assert '"each": ["...", "..."]' in system.content
    assert user.content == 'a\n\nKeys of the documents: key; each of ["part 1", "part 3"]; page 4; page 6'
    reader = Brief(Role.ROOT, "a", keys=keys, can_delegate=True, can_read=True)
    assert EACH.open(reader)[1] == HERMES.open(reader)[1], "reading needs the key of each document"
    quoted = Brief(Role.ROOT, "a", keys=('a"1', 'a"2'), can_delegate=True)
    assert EACH.open(quoted)[1] == HERMES.open(quoted)[1], "JSON would escape these keys"


def test_documents_before_the_task_share_a_prefix():
    first, second = (
        EACH.open(Brief(Role.CLONE, task, documents={"part 1": "It rains."})) for task in ("Who?", "Where?")
    )
    assert first[0] == second[0]
    assert first[1].content == "Document part 1:\nIt rains.\n\nWho?"
    assert second[1].parts[:-1] == first[1].parts[:-1]
    root = Brief(Role.ROOT, "Who?", keys=("part 1",))
    assert EACH.open(root) == HERMES.open(root)


@given(st.lists(terse_requests, min_size=1).map(tuple).map(Delegate) | st.text("ABC", min_size=1).map(tuple).map(Read))
@example(Delegate((CloneRequest(""),)))
def test_terse_calls_round_trip(action):
    assert TERSE.parse(TERSE.render(action, "thought")) == action


@given(text)
def test_answers_round_trip(answer):
    assume("Answer:" not in answer and "<" not in answer and answer)
    assert TERSE.parse(TERSE.render(Answer(answer), "so")) == Answer(answer)
    assert HERMES.parse(HERMES.render(Answer(answer), "so")) == (Answer(answer.strip()) if answer.strip() else NONE)


@pytest.mark.parametrize("protocol", [HERMES, TERSE])
@settings(max_examples=300)
@given(hostile)
def test_parse_never_raises_and_what_it_finds_can_be_written_again(protocol, said):
    action = protocol.parse(said)
    if not isinstance(action, Malformed):
        assert protocol.parse(protocol.render(action)) == action


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(("objectives", "objective", "shared_context", "max_tokens", "keys", "x")), inner
            )
        ),
        max_leaves=8,
    ),
    st.sampled_from(("spawn_clone", "read_document")),
)
def test_no_json_makes_parse_raise(payload, name):
    assert isinstance(HERMES.parse(call(payload, name)), Delegate | Read | Malformed)
    assert isinstance(HERMES.parse(f"<tool_call>{json.dumps(payload)}</tool_call>"), Malformed)


# What is a call, what is an answer


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Answer: 1\nAnswer: 2 ", Answer("2")),
        ("answer 7", NONE),
        ("Answer:  \n", NONE),
        ("", NONE),
        ("<think>Answer: 1</think> hm", NONE),
        ("Perhaps " + call({"objectives": ["a"]}) + "\n</think>\n\nAnswer: 2", Answer("2")),  # the prompt opened it
        ("First Answer: 5? no.\n</think>\n\nI give up.", NONE),
        ("<think>Answer: 1</think>Answer: 2</think>", Answer("2</think>")),
        ("Answer: 5</think>\n", Answer("5</think>")),  # nothing follows, so it was no thought
        ("Maybe " + call({"objectives": ["a"]}) + "? No, wait.</think>\n", NONE),
        ("Maybe <tool_call>{? No.</think>", NONE),
        ("**Answer:** 42", Answer("42")),
        ("So it is.\n**Answer: 42**\n", Answer("42")),
        ("**Final Answer:** 42", Answer("42")),
        ("__Answer:__ **42**", Answer("**42**")),
        ("- **Answer:** 42", Answer("42")),
        ("1. > **Final-Answer:** 42", Answer("42")),
        ("Maybe " + call({"objectives": ["Add. Answer: the sum"]}) + "</think>\n", NONE),
        ("*Answer: 4*2*", Answer("4*2")),
        ("x = 2 **Answer: 2**", Answer("2**")),  # in the middle of a line it may be anything
        ("Answer: **42**", Answer("**42**")),
        ("**Answer:**", NONE),
        ("<think>Answer: 1", NONE),  # an unfinished chain of thought
        ("Answer: 4<think>Answer: 5", Answer("4")),
        ("<think>" + call({"objectives": ["a"]}) + "</think>Answer: 2", Answer("2")),
        ("Ans<think></think>wer: 5", NONE),
        (call({"objectives": ["say Answer: 3"]}), Delegate((CloneRequest("say Answer: 3"),))),
        ("Answer: 3 " + call({"objectives": ["a"]}) + " Answer: 4", Delegate((CloneRequest("a"),))),
        (call({"objectives": ["a"]}) + call({"objectives": ["b"]}), Delegate((CloneRequest("a"), CloneRequest("b")))),
        (call({"keys": ["A"]}, "read_document") * 2, Read(("A", "A"))),
        (call({"objectives": ["a"]}) + call({"keys": ["A"]}, "read_document"), BAD),
        (call({"objectives": ["a"]}) + "<tool_call>", BAD),  # an unclosed call is not dropped in silence
        ("<tool_call>{]</tool_call>", BAD),
        ("<tool_call>{", BAD),
        (call({"objectives": []}), BAD),
        (call({"objectives": "a"}), BAD),
        (call({"objectives": [1]}), BAD),
        (call({}), BAD),
        (call([]), BAD),
        (call(""), BAD),
        (call({"objectives": ["a"]}, "python"), BAD),
        (call({"objectives": ["a"], "temperature": 0}), BAD),
        (call({"objectives": ["a"], "max_turns": 9}), BAD),
        (call({"objectives": ["a"], "tools": ["python"]}), BAD),
        (call({"objectives": [{"objective": "a", "temperature": 0}]}), BAD),
        (call({"objectives": [{"objective": "a", "max_tokens": -1}]}), BAD),
        (call({"objectives": [{"objective": "a", "max_tokens": True}]}), BAD),
        (call({"objectives": [{"objective": "a", "max_tokens": 1.0}]}), BAD),
        (call({"objectives": ["a"], "shared_context": "A"}), BAD),
        (call({"objectives": ["\ud800"]}), BAD),  # half a surrogate pair could not be stored
        (call({"keys": ["A"], "temperature": 0}, "read_document"), BAD),
        (call({"keys": []}, "read_document"), BAD),
        (
            call(
                {
                    "objectives": [{"objective": "a", "shared_context": ["B", "A"], "max_tokens": 0}],
                    "shared_context": ["A"],
                }
            ),
            Delegate((CloneRequest("a", ("A", "B"), 0),)),
        ),
    ],
)
def test_hermes(said, meant):
    assert HERMES.parse(said) == meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("hm<ans>7<end>", Answer("7")),
        ("<ans>1<ans>2", Answer("2")),
        ("<ans><end>", NONE),
        ("7<end>", NONE),
        ("<call>+@B<sep>-</call>", Delegate((CloneRequest("+", ("B",)), CloneRequest("-")))),
        ("<call>+</call><call>-</call>", Delegate((CloneRequest("+"), CloneRequest("-")))),
        ("<call>+</call><ans>7<end>", Delegate((CloneRequest("+"),))),
        ("<call><ans>7</call>", Delegate((CloneRequest("<ans>7"),))),
        ("<call>+", BAD),
        ("<call></call>", BAD),
        ("<read>BF</read>", Read(("B", "F"))),
        ("<read></read>", BAD),
        ("<read>B", BAD),
        ("<read>B</read><call>+</call>", BAD),
    ],
)
def test_terse(said, meant):
    assert TERSE.parse(said) == meant


def keys(count):
    return [f"k{i}" for i in range(count)]


HUGE = {
    "deep": lambda n: "[" * n,
    "deep in a call": lambda n: f"<tool_call>{'[' * n}</tool_call>",
    "open calls": lambda n: "<tool_call>" * n,
    "open terse calls": lambda n: "<call>" * n,
    "thoughts": lambda n: "<think>" * n,
    "no end of a thought": lambda n: "a<b" * n,
    "digits": lambda n: f'<tool_call>{{"name": "spawn_clone", "arguments": {{"objectives": [{"9" * n}]}}}}</tool_call>',
    "keys shared with objectives": lambda n: call({"objectives": [""] * (n // 9), "shared_context": keys(n // 9)}),
    "keys shared with objects": lambda n: call(
        {"objectives": [{"objective": "", "shared_context": ["k"]}] * (n // 9), "shared_context": keys(n // 9)}
    ),
}


@pytest.mark.parametrize("protocol", [HERMES, TERSE])
@pytest.mark.parametrize("name", HUGE)
def test_huge_and_deep_text_is_bad_in_linear_time(protocol, name):
    texts = {size: HUGE[name](size) for size in (5_000, 20_000, 80_000)}
    assert isinstance(protocol.parse(texts[80_000]), Malformed)
    # What is quadratic is so in both; memory of 128 kB and more costs an allocator a step in one of them.
    assert min(growth(lambda size: protocol.parse(texts[size]), size) for size in (5_000, 20_000)) < 9


def test_a_call_costs_time_and_memory_by_its_length():
    """One objective that names again what is shared, and many that name one key more."""
    own = {
        n: call({"objectives": [{"objective": "", "shared_context": keys(n)}], "shared_context": keys(n)})
        for n in (1000, 4000)
    }
    assert HERMES.parse(own[1000]) == Delegate((CloneRequest("", tuple(keys(1000))),))
    assert growth(lambda n: HERMES.parse(own[n]), 1000) < 9
    said = call({"objectives": [{"objective": "", "shared_context": ["x"]}] * 300, "shared_context": keys(330)})
    assert HERMES.parse(said) == Delegate((CloneRequest("", (*keys(330), "x")),) * 300)
    said = call({"objectives": [{"objective": "", "shared_context": ["x"]}] * 1500, "shared_context": keys(9000)})
    tracemalloc.start()
    try:
        assert HERMES.parse(said) == BAD  # as tuples of keys, 108 MB
        assert tracemalloc.get_traced_memory()[1] < 40 * len(said)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("protocol", [HERMES, TERSE])
@pytest.mark.parametrize("piece", ["<", "< ", " ", "\n", "/", "</ ", "<<", "|", "[", "<a"])
def test_a_reply_is_neutralised_in_linear_time(protocol, piece):
    texts = {n: "<" + piece * n for n in (1000, 4000)}
    assert growth(lambda n: protocol.neutralise(texts[n]), 1000) < 9


@given(st.lists(st.sampled_from([*"< \n/|[>", "SYS", "tool", "s>", "INST"])).map("".join))
def test_the_markers_found_are_those_of_the_plain_pattern(reply):
    """White space may be passed over in any way, so long as the same markers are found."""
    plain = hermes._MARKERS.pattern.replace(r"\s*+(?:/\s*+)?", r"\s*/?\s*")
    assert plain != hermes._MARKERS.pattern
    found = [match.start() for match in re.finditer(plain, reply, re.I)]
    assert [match.start() for match in hermes._MARKERS.finditer(reply)] == found


# Nothing gets through to a parent

SMUGGLED = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<</SYS>>",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "<s>",
    "</s>",
    "<think>",
    "</think>",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<\uff5cUser\uff5c>",
]
TERSE_MARKS = ["<ans>", "<end>", "<call>", "</call>", "<read>", "<tool>", "<asst>", "<err>", "<sep>", "<doc>", "<root>"]


def halves(markers):
    split = st.sampled_from(markers).flatmap(lambda m: st.integers(0, len(m)).map(lambda i: (m[:i], m[i:])))
    nested = st.tuples(split, st.sampled_from(markers)).map(lambda p: p[0][0] + p[1] + p[0][1])
    return st.lists(nested | nested.map(str.upper) | st.sampled_from(markers) | text, max_size=5).map("".join)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(halves(SMUGGLED), min_size=1, max_size=4))
@example(["<tool_<tool_call>call>", "<|im_<|im_end|>end|>", "[IN[INST]ST]"])
def test_hermes_replies_carry_no_marker(replies):
    content = HERMES.replies([Reply(reply) for reply in replies]).content.lower()
    assert not [marker for marker in SMUGGLED if marker.lower() in content]
    assert HERMES.neutralise("answer: 7") == "answer: 7"
    for reply in replies:
        assert HERMES.neutralise(HERMES.neutralise(reply)) == HERMES.neutralise(reply)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(halves(TERSE_MARKS), min_size=1, max_size=6))
@example(["", "<", "all>"])  # the label between them is 'c'
@example(["", "", "", "</", "", "nd>"])
def test_terse_replies_carry_no_marker(replies):
    message = TERSE.replies([Reply(reply) for reply in replies])
    content = message.content.removeprefix("<tool>").removesuffix("<asst>")
    assert not [marker for marker in TERSE_MARKS if marker in content]
    for reply in replies:
        assert TERSE.neutralise(TERSE.neutralise(reply)) == TERSE.neutralise(reply)
    assert all(not part.trusted for part in message.parts[2::2])


# Prices


@pytest.mark.parametrize("counter", [WordCounter(), ByteCounter()])
@given(st.lists(st.text(), min_size=1, max_size=4), st.text())
def test_counts_are_additive(counter, pieces, other):
    def price(first):
        return counter.count((Message(MessageRole.TOOL, (Part(first), *map(Part, pieces[1:]))),), Boundary.AFTER_STOP)

    assert price(other) - price(pieces[0]) == counter.count_text(other) - counter.count_text(pieces[0])


@pytest.mark.parametrize("protocol", [HERMES, TERSE])
@pytest.mark.parametrize("counter", [WordCounter(), ByteCounter()])
@given(
    st.lists(text | st.sampled_from([s for s in Status if s.is_terminal] + [Fault.PROMPT_TOO_LONG]), max_size=30),
    st.data(),
)
def test_reply_bound_is_an_upper_bound(protocol, counter, outcomes, data):
    rules = Rules(Limits(reply_tokens=data.draw(st.integers(0, 9))), protocol, counter)
    fits = rules.limits.reply_tokens
    replies = [
        Reply(failure=o)
        if isinstance(o, Fault | Status)
        else Reply(o)
        if counter.count_text(protocol.neutralise(o)) <= fits
        else Reply(failure=Status.REPLY_TOO_LONG)
        for o in outcomes
    ]
    assert counter.count((protocol.replies(replies),), Boundary.AFTER_STOP) <= rules.reply_bound(len(replies))


@pytest.mark.parametrize("protocol", [HERMES, TERSE])
def test_every_fault_has_its_line_within_the_notice(protocol):
    for counter in (WordCounter(), ByteCounter()):
        rules = Rules(Limits(), protocol, counter)
        assert max(counter.count((protocol.fault(f),), Boundary.AFTER_STOP) for f in Fault) == rules.notice_tokens


# Budgets in the prompt


def test_the_terse_protocol_that_shows_budgets_says_these_texts() -> None:
    protocol = BudgetedTerseProtocol()
    root = Brief(Role.ROOT, "?BF", keys=("A", "B", "F"), can_delegate=True, total_tokens=480)
    clone = Brief(Role.CLONE, "+", keys=("B",), documents={"B": "35172"}, total_tokens=130, reply_tokens=4)
    for brief, shown in ((root, "<root>[35]#ABF?BF<asst>"), (clone, "<clone>[28]+<doc>B35172<asst>")):
        (message,) = protocol.open(brief)
        assert message.content == shown
        assert [part.trusted for part in message.parts[:2]] == [True, True], "the number is ours"
        unlimited = replace(brief, total_tokens=None)
        assert protocol.open(unlimited) == TERSE.open(unlimited)
    assert protocol.parse("<call>+@B</call>") == TERSE.parse("<call>+@B</call>")


def test_buckets_by_hand() -> None:
    assert [bucket(n) for n in (0, 1, 2, 128, 152, 153, 430, 431, 511, 512)] == [0, 0, 4, 28, 28, 29, 34, 35, 35, 36]
    assert bucket(10**30) == 99


def test_hermes_shows_budgets_too() -> None:
    said = [HERMES.open(Brief(Role.ROOT, "1+1?", total_tokens=n))[0].content for n in (300, 900)]
    assert [line for text in said for line in text.splitlines() if "tokens in all" in line] == [
        f"You may use {n} tokens in all, prompts and replies included." for n in (300, 900)
    ]
