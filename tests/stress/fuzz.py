"""A million hostile inputs, drawn and grown: nothing raises what it should not, takes too long, or is executed.

    python tests/stress/fuzz.py --out tests/stress/evidence/fuzz.json
    python tests/stress/fuzz.py --target hermes.parse --seed 0 --first 4711 --inputs 1       # one input again

Targets are protocols, chat codecs of all families of templates (roles are compared on ids, markers may be split over
parts), graders, loaders of data, configs and records. Input `i` of a target follows from (seed, target, i) alone; every
finding is printed with all three. A `SelfcestError` is a refusal; any other exception, a promise that does not hold,
and an input that takes more than `LIMIT_S` seconds of CPU are findings.

Then each target's time against length: texts of a repeated piece, doubled three times, CPU time as the least of
several repeats. The exponent of the steepest piece is printed; above `STEEPEST`, also when it is measured again at four
times the length, it is a finding. So are more than `BYTES_PER_CHARACTER` of traced memory for the longest text.

Inputs hold code that would leave a file behind, and the interpreter's own events (a process started, a program or a
pickle run) are counted while targets work. As a control the same code is executed once at the end, and must show.
Ends with exit code 1 if there is any finding.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import json
import math
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from chat_models import PLAIN_ADDED, SPECIALS, TEMPLATES, VICUNA, byte_level, chat_tokenizer
from graders import code, task_for
from tokenizers import AddedToken

from selfcest_agents.chat import ChatCodec, ChatConfig
from selfcest_env.errors import SelfcestError
from selfcest_env.graders import GRADERS, Grader
from selfcest_env.protocol import Reply
from selfcest_env.record import from_json, read_episodes, to_json, write_episode
from selfcest_env.structure import to_builtins
from selfcest_env.tasks import make_source
from selfcest_env.tasks.files import read_records
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.markers import Markers
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import Boundary, Malformed, Message, MessageRole, Part
from selfcest_eval.play.config import parse_study
from selfcest_training.config_file import apply_override, load_config, parse_config
from selfcest_training.yaml_text import read_yaml, write_yaml

ROOT = Path(__file__).resolve().parents[2]
INPUTS = 1_000_000
LIMIT_S = 1.0  # CPU of one input
HANG_S = 580.0  # wall-clock, after which the process shows where it is and ends
STEEPEST = 1.5  # of the exponent; an n log n is at 1.1
SHORTEST, DOUBLINGS = 2000, 3  # characters
BYTES_PER_CHARACTER = 2000  # of traced memory
SLACK = 2_000_000  # bytes, for what does not depend on the length
EXCERPT = 300
EXECUTED = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pickle.find_class")

SENTINEL = Path(tempfile.gettempdir()) / f"selfcest-fuzz-{os.getpid()}"
CODE = code(SENTINEL)

# Special tokens of the families, beside those that the tests' own tokenizer has.
FOREIGN = (
    *("<|begin_of_text|>", "<|eom_id|>", "<|end|>", "<|system|>", "<|im_sep|>", "[gMASK]", "<sop>", "<|observation|>"),
    *("]~!b[", "]~b]", "[e~[", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<BOS_TOKEN>"),
    *(
        "<|CHATBOT_TOKEN|>",
        "<|SYSTEM_TOKEN|>",
        "<|start_of_role|>",
        "<|end_of_role|>",
        "<|end_of_text|>",
        "<extra_id_0>",
    ),
    *("<|im_user|>", "<|im_system|>", "<|im_assistant|>", "<|im_middle|>", "<|start|>", "<|message|>", "<|channel|>"),
    *(
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜end▁of▁sentence｜>",
        "<unused7>",
        "[TOOL_CALLS]",
        "[|user|]",
        ">>QUESTION<<",
    ),
)
MARKERS = (*SPECIALS, *PLAIN_ADDED, *FOREIGN)


def chat_template(
    system: str, user: str, assistant: str, end: str, start: str = "", user_end: str | None = None
) -> str:
    """A template that writes these texts before contents and after them, and no other role."""
    before = {"system": system, "user": user, "assistant": assistant}
    after = {"system": end if user_end is None else user_end, "user": end if user_end is None else user_end}
    return (
        f"{{{{ {start!r} }}}}{{% set before = {before!r} %}}{{% set after = {after!r} %}}{{% for m in messages %}}"
        "{% if m.role not in before %}{{ raise_exception('no such role') }}{% endif %}"
        f"{{{{ before[m.role] + m.content + (after[m.role] if m.role in after else {end!r}) }}}}{{% endfor %}}"
        "{% if add_generation_prompt %}{{ before['assistant'] }}{% endif %}"
    )


FAMILIES: dict[str, str] = {
    **TEMPLATES,
    "vicuna": VICUNA,
    "llama2": chat_template("<s>[INST] ", "", " [/INST] ", "</s>", user_end="").replace(
        "before[m.role] +", "(before[m.role] if m.role != 'user' or not loop.first else '<s>[INST] ') +"
    ),
    "phi": chat_template("<|system|>\n", "<|user|>\n", "<|assistant|>\n", "<|end|>\n"),
    "phi4": chat_template(*(f"<|im_start|>{r}<|im_sep|>" for r in ("system", "user", "assistant")), "<|im_end|>"),
    "glm": chat_template("<|system|>\n", "<|user|>\n", "<|assistant|>\n", "<|endoftext|>", "[gMASK]<sop>", ""),
    "minimax": chat_template("]~!b[]~b]system\n", "]~b]user\n", "]~b]ai\n", "[e~[\n"),
    "cohere": chat_template(
        *(f"<|START_OF_TURN_TOKEN|><|{r}_TOKEN|>" for r in ("SYSTEM", "USER", "CHATBOT")),
        "<|END_OF_TURN_TOKEN|>",
        "<BOS_TOKEN>",
    ),
    "granite": chat_template(
        *(f"<|start_of_role|>{r}<|end_of_role|>" for r in ("system", "user", "assistant")), "<|end_of_text|>\n"
    ),
    "kimi": chat_template(*(f"<|im_{r}|>{r}<|im_middle|>" for r in ("system", "user", "assistant")), "<|im_end|>"),
    "harmony": chat_template(
        "<|start|>system<|message|>",
        "<|start|>user<|message|>",
        "<|start|>assistant<|channel|>final<|message|>",
        "<|end|>",
    ),
    "deepseek-v3": chat_template("", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", user_end=""),
    "plain-roles": chat_template("### System:\n", "### User:\n", "### Assistant:\n", "</s>\n", user_end="\n"),
}

PIECES = (
    *MARKERS,
    *(
        "Answer:",
        "<call>",
        "</call>",
        "<read>",
        "</read>",
        "@",
        "<sep>",
        "<ans>",
        "<end>",
        "<root>",
        "<tool>",
        "<|tool|>",
    ),
    *(
        '{"name": "spawn_clone", "arguments": {"objectives": ["x"]}}',
        '{"name":"read_document","arguments":{"keys":["A"]}}',
    ),
    *(
        '"objectives"',
        '"max_tokens": -1',
        '"shared_context": ["A"]',
        "[",
        "]",
        "{",
        "}",
        '"',
        "\\",
        "\\u003c",
        ":",
        ",",
    ),
    *(
        "<",
        ">",
        "|",
        "</",
        "|>",
        "/",
        "_",
        "~",
        "(",
        ")",
        "$",
        "%",
        "!",
        "*",
        "**",
        "^",
        "-",
        "+",
        "=",
        ".",
        "'",
        "`",
        "#",
    ),
    *(
        "\\boxed{",
        "\\frac{1}{2}",
        "\\sqrt",
        "\\text{ cm}",
        "\\left(",
        "9**9**9",
        "9!",
        "12,345",
        "0.1",
        "1e309",
        "-2",
        "81",
    ),
    *("A", "B", "the ", "Ulm", "yes", " or ", " ", "\n", "\t", "\r", "\x00", "\x1b[31m", "\u200b", "\u202e", "\ud800"),
    *("é", "e\u0301", "ｓ", "＜", "｜", "٣", "½", "𝟛", "İ", "ß", "\ufeff", "\u2028", "clone 2: ", "USER:", "### User:"),
    *(
        "k|v\n",
        "| --- |",
        "|x|1|\n",
        "null",
        "true",
        "NaN",
        "- ",
        "&a ",
        "*a",
        "<<: ",
        "!!python/object/apply:os.system ",
    ),
    CODE,
    f"\\boxed{{{CODE}}}",
)


TURNS = (
    '<tool_call>{"name": "spawn_clone", "arguments": {"objectives": ["Add up A.", "Add up B."], '
    '"shared_context": ["A"]}}</tool_call>',
    '<think>A first.</think><tool_call>{"name": "spawn_clone", "arguments": {"objectives": [{"objective": "Read A", '
    '"shared_context": ["A"], "max_tokens": 40}]}}</tool_call>',
    '<tool_call>{"name": "read_document", "arguments": {"keys": ["A", "B (2)"]}}</tool_call>',
    "The parts are 3 and 4.\nAnswer: 7",
    "<call>1+2@A<sep>3+4@B</call>",
    "<read>A</read>",
    "<ans>7<end>",
)


def some_text(rng: random.Random, most: int = 12) -> str:
    """Pieces one after the other, sometimes cut, sometimes one of them many times."""
    parts = []
    for _ in range(rng.randrange(most + 1)):
        piece = rng.choice(PIECES)
        kind = rng.random()
        if kind < 0.1:
            at = rng.randrange(len(piece) + 1)
            piece = piece[:at] + rng.choice(PIECES) * (kind < 0.05) + piece[at:] * (kind < 0.05)
        elif kind < 0.14:
            piece *= rng.choice((2, 3, 40))
        elif kind < 0.18:
            piece = "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(4)))
        elif kind < 0.21:
            piece = piece.swapcase()
        parts.append(piece)
    return "".join(parts)


def some_turn(rng: random.Random) -> str:
    """Every other one a good turn with a fault or some, the rest pieces."""
    return changed_text(rng, rng.choice(TURNS)) if rng.random() < 0.5 else some_text(rng)


def changed_text(rng: random.Random, text: str) -> str:
    """A good text with one to four faults."""
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.choice((0, 0, 1, 1, 2, 8, 60)))
        text = text[:at] + rng.choice(("", text[at:to] * 2, rng.choice(PIECES), chr(rng.randrange(256)))) + text[to:]
    return text


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 10**30, -(2**63), 0.5, 1e308, math.inf, math.nan, "", "0", "root", "root.0.0"),
    *([], {}, [[]], {"": None}, "\ud800", "answered", "selfcest_env.graders:GRADERS", "os:system", CODE, "a" * 5000),
)


def changed_value(rng: random.Random, value: Any) -> Any:
    """A copy of JSON values with one to three faults: another value, a key too many, too few, or misspelt."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return rng.choice(ODD)
        holder, key = rng.choice(places)
        kind = rng.random()
        if kind < 0.55:
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif kind < 0.65:
            holder[key] = some_text(rng, 4)
        elif kind < 0.75:
            del holder[key]
        elif kind < 0.85:
            other = rng.choice(places)
            holder[key] = copy.deepcopy(other[0][other[1]])
        elif isinstance(holder, dict):
            holder[some_text(rng, 2)] = holder[key]
        else:
            holder.append(copy.deepcopy(holder[key]))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


@dataclass(frozen=True)
class Target:
    """Something that takes what others wrote.

    Attributes:
        draw: an input out of a stream.
        work: takes an input. Returns whether it refused it by value; a refusal may also be a `SelfcestError`.
        long: an input out of a text of any length.
        share: of the inputs, in relation to the other targets.
        pieces: that `long` texts are made of.
        shortest: characters of the shortest text whose time is measured.
    """

    draw: Callable[[random.Random], Any]
    work: Callable[[Any], bool]
    long: Callable[[str], Any] | None = None
    share: float = 1.0
    pieces: Sequence[str] = (
        "a",
        " ",
        "\n",
        "<",
        "[",
        "{",
        '"',
        "\\",
        "1",
        "9,",
        "-",
        "<tool_call>",
        "<think>",
        "|",
        "~",
        "é",
    )
    shortest: int = SHORTEST


# Protocols


def _parse(protocol: Any, text: str) -> bool:
    action = protocol.parse(text)
    if isinstance(action, Malformed):
        return True
    again = protocol.parse(protocol.render(action))
    assert again == action, f"{action!r} was written and read as {again!r}"
    return False


def _neutral(protocol: Any, replies: Sequence[str]) -> bool:
    said, known = (
        protocol.replies([Reply(reply) for reply in some]).content for some in (replies, ["a"] * len(replies))
    )
    own = ("<tool_call>", "</think>", "<|", "[INST]") if isinstance(protocol, HermesProtocol) else ("<tool>", "<ans>")
    assert not [marker for marker in own if said.count(marker) != known.count(marker)], said
    for reply in replies:
        once = protocol.neutralise(reply)
        assert protocol.neutralise(once) == once, f"{once!r} is not neutral"
    return False


def _cleaned(markers: Markers, parts: Sequence[str]) -> bool:
    said = markers.clean(Message(MessageRole.USER, tuple(map(Part, parts)))).content
    assert not [m for m in (*MARKERS, *markers.others) if m.strip() and m.lower() in said.lower()], said
    for part in parts:
        for change in (markers.neutralise, markers.neutralise_own):
            once = change(part)
            assert change(once) == once, f"{once!r} is not neutral"
    return False


# Chat codecs


@dataclass(frozen=True)
class Chat:
    """A family's codec, and the server that would render what it is sent.

    Attributes:
        special: ids that untrusted text must not get.
        calls: those of them that an agent's own text may have.
    """

    codec: ChatCodec
    render: Callable[[list[dict[str, str]]], str]
    backend: Any
    special: frozenset[int]
    calls: frozenset[int]

    def roles(self, ids: Sequence[int], without: frozenset[int] = frozenset()) -> list[int]:
        return [i for i in ids if i in self.special and i not in without]

    def served(self, user: Sequence[str], own: str, reply: Sequence[str]) -> list[int]:
        """Ids at a server: the template over whole messages, then special tokens wherever they stand."""
        markers = Markers(self.codec.markers)
        said = [
            markers.clean(Message(role, tuple(map(Part, parts)))).content
            for role, parts in (
                (MessageRole.USER, user), (MessageRole.ASSISTANT, (own,)), (MessageRole.TOOL, reply),
            )
        ]  # fmt: skip
        roles = ("user", "assistant", "user")
        written = self.render([{"role": r, "content": text} for r, text in zip(roles, said, strict=True)])
        ids: list[int] = self.backend.encode(written.encode(errors="replace").decode(), add_special_tokens=False).ids
        return ids


@cache
def chat_of(family: str) -> Chat:
    backend = byte_level()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in FOREIGN])
    tokenizer = chat_tokenizer(FAMILIES[family], backend)
    variables = {"strftime_now": ChatConfig().strftime, "date_string": "01 Jan 2025"}
    render = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True, **variables)
    special = {text: backend.token_to_id(text) for text in MARKERS}
    calls = frozenset(special[text] for text in ("<tool_call>", "</tool_call>", "<think>", "</think>"))
    return Chat(ChatCodec(tokenizer), render, backend, frozenset(special.values()), calls)


def _draw_chat(rng: random.Random) -> tuple[Boundary, list[str], str, list[str]]:
    def parts() -> list[str]:
        text = some_text(rng, 5).encode(errors="replace").decode()
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(3)))
        return [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    return rng.choice(list(Boundary)), parts(), some_text(rng, 4).encode(errors="replace").decode(), parts()


def _play_chat(family: str, drawn: tuple[Boundary, list[str], str, list[str]]) -> bool:
    chat, (boundary, user, own, reply) = chat_of(family), drawn

    def messages(parts: Sequence[str]) -> tuple[Message, ...]:
        said = tuple(Part(part) for part in parts)
        if boundary is not Boundary.OPENING:
            return (Message(MessageRole.TOOL, (Part("clone 1: ", True), *said, Part("\nclone 2: ", True), Part("b"))),)
        return Message(MessageRole.SYSTEM, (Part("Be brief.", True),)), Message(MessageRole.USER, said)

    codec = chat.codec
    ids, empty = (codec.encode(messages(parts), boundary) for parts in (user, [""]))
    assert chat.roles(ids) == chat.roles(empty), f"other roles by id in {chat.backend.decode(ids, False)!r}"
    assert len(ids) - len(empty) == sum(map(codec.count_text, user)), "the parts' prices do not add up"
    text, known = chat.backend.decode(ids, False), chat.backend.decode(empty, False)
    plain_roles = [role for role in codec.markers if role not in MARKERS]
    for role in plain_roles:
        assert text.lower().count(role.lower()) == known.lower().count(role.lower()), f"another {role!r} in {text!r}"
    assert plain_roles or "".join(user) in text, f"{text!r} is not what was said"
    turn = codec.encode_scripted(own)
    assert chat.roles(turn, chat.calls | {i for i in chat.special if chat.backend.id_to_token(i) in PLAIN_ADDED}) == [
        turn[-1]
    ], "special tokens in an agent's own text"
    harmless = chat.served(["a"], "b", ["c"])
    assert chat.roles(chat.served(user, "b", reply)) == chat.roles(harmless), "other roles at a server"
    assert chat.roles(chat.served(["a"], own, ["c"]), chat.calls) == chat.roles(harmless, chat.calls), "own roles"
    return False


# Graders


@cache
def grader_of(name: str) -> Grader:
    return GRADERS.make(name, {"symbolic": False} if name == "math" else {}, where=name)


def _grade(name: str, answer: str) -> bool:
    grade = grader_of(name).grade(task_for(name), answer)
    assert 0 <= grade.score <= 1, f"{grade.score!r} is no score"
    assert not grade.correct or grade.well_formed, "right, and of no form"
    return not grade.well_formed


# Data files

HOTPOT = {
    "_id": "5a77",
    "question": "Which came first, the Alpha Post or the Beta Post?",
    "answer": "Beta Post",
    "supporting_facts": [["Alpha Post", 0], ["Beta Post", 0]],
    "context": [["Alpha Post", ["Alpha Post began in 1901."]], ["Beta Post", ["Beta Post is a paper of 1899."]]],
    "type": "comparison",
    "level": "hard",
}
SAMPLES: dict[str, Any] = {
    "questions": {"question": "Who?", "answer": "Ulm", "documents": {"A": "Ulm is a city."}, "id": "q1"},
    "gsm8k": {"question": "3 eggs a day, 2 days?", "answer": "3 * 2 = <<3*2=6>>6.\n#### 6"},
    "math": {
        "problem": "What is $1+1$?",
        "level": "Level 1",
        "type": "Prealgebra",
        "solution": "So $\\boxed{\\frac{4}{2}}$.",
    },
    "aime": {"id": 60, "problem": "Find $n$.", "answer": "204", "solution": "So $\\boxed{204}$."},
    "countdown_file": {"nums": [39, 9, 2], "target": 46, "solution": ["39+9=48", "48-2=46"]},
    "hotpotqa": HOTPOT,
    "musique": {
        "id": "2hop__1_2",
        "paragraphs": [
            {"idx": 0, "title": "Anna", "paragraph_text": "Anna was born in Ulm.", "is_supporting": True},
            {"idx": 1, "title": "Ulm", "paragraph_text": "Ulm is in Baden.", "is_supporting": True},
        ],
        "question": "Where is the birthplace of Anna?",
        "question_decomposition": [
            {"id": 1, "question": "Anna >> place of birth", "answer": "Ulm", "paragraph_support_idx": 0},
            {"id": 2, "question": "Where is #1?", "answer": "Baden", "paragraph_support_idx": 1},
        ],
        "answer": "Baden",
        "answer_aliases": [],
        "answerable": True,
    },
    "two_wiki": {
        "_id": "470e",
        "type": "compositional",
        "question": "Where was the director of Later born?",
        "context": [["Later", ["Later is by Bo Ek."]], ["Bo Ek", ["Bo Ek was born in Ulm."]]],
        "supporting_facts": [["Later", 0], ["Bo Ek", 0]],
        "evidences": [["Later", "director", "Bo Ek"], ["Bo Ek", "place of birth", "Ulm"]],
        "answer": "Ulm",
    },
}
# Where a text of any length goes, if not into "question".
ASKED = {"math": "problem", "aime": "problem", "countdown_file": "solution"}
STORY = "1 Mary moved to the hall.\n2 John went to the garden.\n3 Where is Mary? \thall\t1\n"
CSV = 'question,answer\n"Who, or what?",Ulm\nWhere?,"a ""b"""\n'


@dataclass(frozen=True)
class Written:
    """A file for a loader: its ending, and its bytes."""

    suffix: str
    data: bytes


def _folder() -> Path:
    folder = SENTINEL.with_suffix(".data")
    folder.mkdir(exist_ok=True)
    return folder


def _draw_file(sample: Any, rng: random.Random) -> Written:
    kind = rng.random()
    if isinstance(sample, str):
        suffix, text = (".csv" if sample is CSV else ".txt"), changed_text(rng, sample)
    else:
        value = [sample, changed_value(rng, sample)] if kind < 0.6 else [sample]
        lines = rng.random() < 0.5
        suffix = ".jsonl" if lines else ".json"
        text = "\n".join(map(json.dumps, value)) if lines else json.dumps(value, ensure_ascii=rng.random() < 0.5)
        text = changed_text(rng, text) if kind > 0.5 else text
    data = text.encode("utf-8", errors="surrogatepass")
    if rng.random() < 0.05:
        data = data.decode("utf-8", errors="replace").encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")), "replace")
    return Written(suffix, data)


def _load(source: str, written: Written) -> bool:
    file = _folder() / f"{'qa1_x_test' if source == 'babi' else 'data'}{written.suffix}"
    file.write_bytes(written.data)
    try:
        if source == "records":
            for record in read_records(str(file)):
                json.dumps(record.data)
            return False
        for task in make_source(source, path=str(file)).tasks():
            assert isinstance(task.prompt, str)
            assert isinstance(task.answer, str)
            task.prompt.encode(), task.answer.encode()
        return False
    finally:
        file.unlink()


# Configs


@cache
def shipped(kind: str) -> dict[str, Any]:
    """A config as plain values."""
    if kind == "study":
        return {
            "name": "served",
            "tasks": {"sums": {"name": "arithmetic"}},
            "strategies": {"delegate": {}, "monolithic": {}},
            "policy": {"name": "server", "options": {"server": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}}},
            "limits": {"reply_tokens": 32, "turn_tokens": 64},
            "budgets": [2048, 8192],
            "eval_sets": [{"family": "sums", "size": "2"}],
        }
    values: dict[str, Any] = to_builtins(load_config(ROOT / "training/configs/quick.yaml"))
    return values


@cache
def shipped_text() -> str:
    return write_yaml(shipped("study")) + "base: &b {a: 1.0e-3}\nmore: {<<: *b, c: [1, ~, .inf]}\n"


def _read_yaml(text: str) -> bool:
    value = read_yaml(text, "fuzz")
    again = read_yaml(write_yaml(value), "fuzz")
    assert repr(again) == repr(value), f"{value!r} was written and read as {again!r}"
    return False


def _override(text: str) -> bool:
    data = copy.deepcopy(shipped("study"))
    apply_override(data, text)
    return False


def _draw_override(rng: random.Random) -> str:
    keys = [
        "name",
        "budgets",
        "0",
        "tasks",
        "sums",
        "policy",
        "options",
        "server",
        "model",
        "eval_sets",
        some_text(rng, 2),
    ]
    path = ".".join(rng.choice(keys) for _ in range(rng.randrange(1, 5)))
    return path + rng.choice(("=", "=", "=", "")) + rng.choice((some_text(rng, 3), "1", "null", "[1, 2]", "{a: 1}"))


def _config(kind: str, data: Any) -> bool:
    config = parse_study(data) if kind == "study" else parse_config(data)
    read = parse_study if kind == "study" else parse_config
    assert repr(read(read_yaml(write_yaml(to_builtins(config)), "fuzz"))) == repr(config), "another config once written"
    return False


# Records


@cache
def sample_record() -> dict[str, Any]:
    facts = {"prompt_tokens": 9, "generated_tokens": 2, "max_new_tokens": 64, "finish_reason": "stop", "fault": None}
    said = {"text": "Answer: 4", "finish_reason": "stop", "prompt_ids": [1, 2], "token_ids": [3, 4], "temperature": 1.0}
    said = {**said, "behavior_logprobs": [-0.5, -1.25], "policy_version": 0}

    def turn(outcome: str, children: list[str]) -> dict[str, Any]:
        return {"facts": {**facts, "outcome": outcome, "children": children, "refused": {}}, "generation": dict(said)}

    agents = [
        {"agent_id": "root", "objective": "2+2", "turns": [turn("delegated", ["root.0"]), turn("answered", [])]},
        {"agent_id": "root.0", "objective": "add", "turns": [turn("answered", [])], "born_at": 0},
    ]
    common = {"shared_context": [], "granted_tokens": 900, "born_at": None, "status": "answered", "reply": "4"}
    record = {
        "episode_id": "e0",
        "task": {"task_id": "t", "prompt": "2+2", "answer": "4", "source": "test", "context": {"A": "x"}},
        "limits": {},
        "seed": 7,
        "agents": [{**common, **agent} for agent in agents],
        "reward_terms": {"correct": 1.0},
    }
    return to_json(from_json(record))


def _record(data: Any) -> bool:
    record = from_json(data)
    written = write_episode(record)
    assert write_episode(from_json(json.loads(written))) == written, "another record once written"
    written.encode()
    return False


def _lines(data: bytes) -> bool:
    file = _folder() / "episodes.jsonl"
    file.write_bytes(data)
    cut: list[str] = []
    try:
        for record in read_episodes(file, cut.append):
            write_episode(record).encode()
    finally:
        file.unlink()
    return bool(cut)


def _draw_lines(rng: random.Random) -> bytes:
    line = write_episode(from_json(sample_record()))
    data = (line + changed_text(rng, line) + line * (rng.random() < 0.3)).encode(errors="surrogatepass")
    return data[: rng.randrange(len(data))] if rng.random() < 0.3 else data


def _with(data: Mapping[str, Any], *path: Any) -> Callable[[str], Any]:
    """A copy of `data` with a text at `path`."""

    def put(text: str) -> Any:
        copied = copy.deepcopy(dict(data))
        node: Any = copied
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = text
        return copied

    return put


def _parts(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def targets() -> dict[str, Target]:
    found: dict[str, Target] = {}
    for name, protocol in (("hermes", HermesProtocol()), ("terse", TerseProtocol())):
        found[f"{name}.parse"] = Target(some_turn, partial(_parse, protocol), str, share=20, shortest=8 * SHORTEST)
        found[f"{name}.replies"] = Target(
            lambda rng: [some_text(rng, 4) for _ in range(3)], partial(_neutral, protocol), _parts, share=8
        )
    for name, markers in (("known", Markers()), ("named", Markers(("Human:", "### User:", "<a b>", "of the")))):
        found[f"markers.{name}"] = Target(
            lambda rng: [some_text(rng, 4) for _ in range(3)], partial(_cleaned, markers), _parts, share=8
        )
    for family in FAMILIES:
        found[f"chat.{family}"] = Target(
            _draw_chat,
            partial(_play_chat, family),
            lambda text: (Boundary.OPENING, _parts(text), text, _parts(text)),
            share=0.25,
            pieces=("a", "\n", "<", "<|im_start|>", "é", "USER:"),
            shortest=500,
        )
    for name in GRADERS:
        found[f"grader.{name}"] = Target(
            some_text,
            partial(_grade, name),
            str,
            share=1.2,
            pieces=(
                "a",
                " ",
                "9",
                "1,",
                "(",
                "{",
                "-",
                "\\boxed{",
                "k|v\n",
                "|",
                ".",
                "$",
                "\\",
                "a ",
                " or ",
                "é",
                "=",
            ),
        )
    for source, sample in SAMPLES.items():
        asked = ASKED.get(source, "question")
        found[f"loader.{source}"] = Target(
            partial(_draw_file, sample),
            partial(_load, source),
            lambda text, sample=sample, asked=asked: Written(
                ".json", json.dumps([{**sample, asked: text}]).encode(errors="replace")
            ),
            pieces=("a", "[", '"', "\\"),
            share=0.3,
        )
    found["loader.babi"] = Target(
        partial(_draw_file, STORY), partial(_load, "babi"), lambda text: Written(".txt", text.encode(errors="replace")),
        pieces=("a", " ", "\n", "\t", STORY, "1 Mary moved to the hall.\n"), share=0.3,
    )  # fmt: skip
    found["loader.csv"] = Target(
        partial(_draw_file, CSV),
        partial(_load, "records"),
        lambda text: Written(".csv", text.encode(errors="replace")),
        share=0.3,
    )
    found["loader.json"] = Target(
        lambda rng: Written(rng.choice((".json", ".jsonl")), some_text(rng).encode(errors="surrogatepass")),
        partial(_load, "records"),
        lambda text: Written(".json", text.encode(errors="replace")),
        pieces=("a", " ", "[", '{"a":', '"', "{},", '{"a":1}\n', "9", "\\", '[{"a":1},', "[1,"),
        share=1,
    )
    found["config.yaml"] = Target(
        lambda rng: changed_text(rng, shipped_text()) if rng.random() < 0.3 else some_text(rng, 6),
        _read_yaml,
        str,
        pieces=("a", " ", "[", "{", "- ", "a: ", "&a ", "'", "? ", "\n", "#", "- a\n", "1"),
        shortest=250,
        share=0.5,
    )
    found["config.override"] = Target(
        _draw_override, _override, "name={}".format, pieces=("a", " ", "[", "9"), shortest=250, share=0.5
    )
    found["config.study"] = Target(
        lambda rng: changed_value(rng, shipped("study")),
        partial(_config, "study"),
        _with(shipped("study"), "name"),
        share=0.1,
    )
    found["config.run"] = Target(
        lambda rng: changed_value(rng, shipped("run")),
        partial(_config, "run"),
        _with(shipped("run"), "name"),
        share=0.1,
    )
    found["record.json"] = Target(
        lambda rng: changed_value(rng, sample_record()), _record, _with(sample_record(), "task", "prompt"), share=1.5
    )
    found["record.lines"] = Target(
        _draw_lines,
        _lines,
        lambda text: text.encode(errors="replace"),
        share=1,
        pieces=("a", "[", "\n", '"', "{}\n", "9", " "),
    )
    return found


# The run


@dataclass
class Found:
    """What came of one target.

    Attributes:
        executed: events of execution while it worked.
        exponent: of CPU time against length, of the steepest piece; `None`: not measured.
        bytes_per_character: traced at most, of the longest text.
    """

    inputs: int = 0
    refusals: int = 0
    findings: list[str] = field(default_factory=list)
    num_findings: int = 0
    longest_ms: float = 0.0
    exponent: float | None = None
    steepest: str = ""
    bytes_per_character: float | None = None
    cpu_s: float = 0.0
    executed: int = 0
    _kinds: set[str] = field(default_factory=set)

    def add(self, where: str, said: str) -> None:
        """Count a finding; of those of one kind, by what stands before a colon, the first is kept and printed."""
        self.num_findings += 1
        kind = said.partition(":")[0]
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.findings.append(f"{where}: {said}")
            print(f"FINDING {where}: {said}", flush=True)


_watching, _executed = False, 0


def _watch(event: str, _: tuple[Any, ...]) -> None:
    global _executed
    if _watching and event in EXECUTED:
        _executed += 1


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Events of execution count while it is open."""
    global _watching
    _watching = True
    try:
        yield
    finally:
        _watching = False


def drawn(name: str, target: Target, seed: int, index: int) -> Any:
    """Input `index` of a target."""
    return target.draw(random.Random(f"{seed}/{name}/{index}"))


def fuzz(name: str, target: Target, seed: int, first: int, inputs: int) -> Found:
    """Inputs `first` to `first + inputs - 1` of a target."""
    found = Found()
    _tried(target, drawn(name, target, seed, first))  # what is loaded once is no input's cost
    began, before = time.process_time(), _executed
    for index in range(first, first + inputs):
        if index % 100 == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
        item = drawn(name, target, seed, index)
        where = f"--target {name} --seed {seed} --first {index} --inputs 1"
        with watched():
            start = time.process_time()
            try:
                found.refusals += target.work(item)
            except SelfcestError:
                found.refusals += 1
            except Exception as error:
                at = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(at.filename).name}, line {at.lineno}"
                found.add(where, f"{type(error).__name__} in {place}: {ascii(str(error))[:EXCERPT]}")
            seconds = time.process_time() - start
        found.longest_ms = max(found.longest_ms, 1000 * seconds)
        if seconds > LIMIT_S:
            found.add(where, f"over {LIMIT_S:g} s of CPU: {seconds:.1f}")
        found.inputs += 1
    faulthandler.cancel_dump_traceback_later()
    found.executed = _executed - before
    if SENTINEL.exists():
        found.add(name, "code of an input was executed")
        SENTINEL.unlink()
    found.cpu_s = time.process_time() - began
    return found


def _tried(target: Target, item: Any) -> None:
    """Work without a word: what fails has been, or will be, said by `fuzz`."""
    with contextlib.suppress(Exception):
        target.work(item)


def _cost(target: Target, items: Sequence[Any], least_s: float) -> float:
    """CPU seconds of one call, the least of some repeats; results that are remembered are of other texts."""
    best, spent, i = math.inf, 0.0, 0
    while i < len(items) and (spent < least_s or i < 2):
        start = time.process_time()
        _tried(target, items[i])
        seconds = time.process_time() - start
        best, spent, i = min(best, seconds), spent + seconds, i + 1
    return best


def exponent_of(target: Target, piece: str, shortest: int, repeats: int = 8, least_s: float = 0.02) -> float:
    """Slope of log CPU time against log length, between the shortest text and one eight times as long."""
    assert target.long is not None
    costs = []
    for size in (shortest, shortest * 2**DOUBLINGS):
        texts = (piece * (size // len(piece)) + f"x{i}" for i in range(repeats))
        costs.append(_cost(target, [target.long(text) for text in texts], least_s))
    floor = 2e-5  # below it a call's own cost hides what grows
    return math.log2(max(costs[1], floor) / max(costs[0], floor)) / DOUBLINGS


def grow(name: str, target: Target, found: Found) -> None:
    """Time and memory against length, piece by piece."""
    if target.long is None:
        return
    began = time.process_time()
    found.exponent, found.bytes_per_character = -math.inf, 0.0
    for piece in target.pieces:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        exponent = exponent_of(target, piece, target.shortest)
        for times in (4, 4):
            if exponent > STEEPEST:  # noise, or more than linear: longer texts tell
                exponent = min(exponent, exponent_of(target, piece, times * target.shortest, least_s=0.2))
        if exponent > found.exponent:
            found.exponent, found.steepest = exponent, piece
        if exponent > STEEPEST:
            found.add(f"--target {name}, {piece!a} repeated", f"time grows with {piece!a} to the power: {exponent:.2f}")
        size = target.shortest * 2**DOUBLINGS
        item = target.long(piece * (size // len(piece)))
        tracemalloc.start()
        _tried(target, item)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        per = max(0, peak - SLACK) / size
        found.bytes_per_character = max(found.bytes_per_character, per)
        if per > BYTES_PER_CHARACTER:
            found.add(f"--target {name}, {piece!a} repeated", f"memory, in bytes for a character: {per:.0f}")
    faulthandler.cancel_dump_traceback_later()
    found.cpu_s += time.process_time() - began


def control() -> bool:
    """Whether the code of the inputs, executed, is noticed by both the file and the events."""
    before = _executed
    with watched():
        exec(compile(CODE, "control", "eval"))
    noticed = SENTINEL.exists() and _executed > before
    SENTINEL.unlink(missing_ok=True)
    return noticed


def shared(chosen: Mapping[str, Target], inputs: int) -> dict[str, int]:
    """Inputs shared out among targets."""
    whole = sum(target.share for target in chosen.values())
    return {name: math.ceil(inputs * target.share / whole) for name, target in chosen.items()}


def run(
    chosen: Mapping[str, Target], seed: int, inputs: int, *, first: int = 0, timed: bool = True, log: bool = False
) -> dict[str, Found]:
    """Fuzz targets, the inputs shared out among them, and measure how each grows."""
    if not getattr(sys, "_selfcest_fuzz", False):
        sys.addaudithook(_watch)
        sys._selfcest_fuzz = True  # type: ignore[attr-defined]
    results = {}
    for name, share in shared(chosen, inputs).items():
        target = chosen[name]
        results[name] = found = fuzz(name, target, seed, first, share)
        if timed:
            grow(name, target, found)
        if log:
            slope = math.nan if found.exponent is None else found.exponent
            print(
                f"{name:24} {found.inputs:7} inputs {found.refusals:7} refused {found.num_findings:3} findings "
                f"{found.longest_ms:8.1f} ms  exponent {slope:5.2f} {found.steepest!a:12} {found.cpu_s:6.1f} s",
                flush=True,
            )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=INPUTS, help="over all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of a target's first input")
    parser.add_argument("--target", default="", help="only targets whose names begin so, by commas")
    parser.add_argument("--untimed", action="store_true", help="leave time against length out")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of loaders, about what they leave out
    chosen = {name: target for name, target in targets().items() if name.startswith(tuple(options.target.split(",")))}
    if not chosen:
        parser.error(f"--target {options.target}: there is no such target; they are {', '.join(targets())}")
    timed = not options.untimed and options.inputs > 1
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commit = commit.strip()
    results: dict[str, Found] = {}
    for name, share in shared(chosen, options.inputs).items():
        results |= run({name: chosen[name]}, options.seed, share, first=options.first, timed=timed, log=True)
        if options.out:
            write(options.out, name, {"commit": commit, "seed": options.seed, **_rounded(asdict(results[name]))})
    executed, noticed = _executed, control()
    with contextlib.suppress(OSError):
        _folder().rmdir()
    total = sum(found.inputs for found in results.values())
    findings = sum(found.num_findings for found in results.values())
    print(f"{total} inputs, {findings} findings, {executed} executed, at most {_peak()} MiB, seed {options.seed}")
    if not noticed:
        print("the control was not noticed: nothing is known of what was executed")
    return 1 if findings or executed or not noticed else 0


def _peak() -> int:
    """MiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def write(file: Path, name: str, figures: Mapping[str, Any]) -> None:
    """Put a target's figures into a file, in the place of older ones, with sums over all that it holds."""
    old = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"targets": {}}
    known = {**old["targets"], name: {**figures, "peak_mib": _peak()}}
    of = list(known.values())
    written = {
        "command": "python tests/stress/fuzz.py --out tests/stress/evidence/fuzz.json",
        "commit": figures["commit"],
        "seed": figures["seed"],
        "python": platform.python_version(),
        **{key: sum(one[key] for one in of) for key in ("inputs", "refusals", "findings", "executed")},
        "longest_ms": max(one["longest_ms"] for one in of),
        "steepest_exponent": max(one["exponent"] or 0.0 for one in of),
        "peak_mib": max(one["peak_mib"] for one in of),
        "cpu_s": round(sum(one["cpu_s"] for one in of), 1),
        "targets": {target: known[target] for target in targets() if target in known},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _rounded(found: dict[str, Any]) -> dict[str, Any]:
    found["first_findings"] = found.pop("findings")
    found["findings"] = found.pop("num_findings")
    del found["_kinds"]
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in found.items()}


if __name__ == "__main__":
    sys.exit(main())
