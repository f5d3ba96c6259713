"""What is said around a protocol: in every form, at its price, and held by the kernel."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfcest_agents.codec import TerseCodec
from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.replay import play_replays
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import RandomActor
from selfcest_agents.tiny import TinyTokenizer
from selfcest_env import delegation_v0
from selfcest_env.counterfactual import restore
from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import LONGEST_NAME, Brief, Note, PromptFormat, PromptVariant
from selfcest_env.record import build_record, from_json, to_json
from selfcest_env.replay import Intervention, Replay
from selfcest_env.rules import Rules
from selfcest_env.stored import stored_name
from selfcest_env.text.counters import ByteCounter, WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.markers import PlainTextProtocol
from selfcest_env.text.prompt_variants import AddBoard, AddCloneLimit, AddNote, AddTurnLimit
from selfcest_env.text.protocols import make_protocol
from selfcest_env.text.spaces import format_transcript
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.types import (
    ROOT,
    AgentId,
    Answer,
    CloneRequest,
    Delegate,
    Fault,
    Limits,
    Message,
    Role,
    Status,
    Task,
    Usage,
)
from selfcest_env.views import observe

HERMES, TERSE, CODEC, WORDS = HermesProtocol(), TerseProtocol(), TerseCodec(TinyTokenizer()), WordCounter()
LIMITS = Limits(total_tokens=60, turn_tokens=20, answer_reserve=2, reply_tokens=3, max_turns=3)
TASK = Task("t", "1?", "7", "own", {"B": "35"})


def terse(prompt_variant: PromptVariant | None, limits: Limits = LIMITS, task: Task = TASK) -> Kernel:
    return Kernel(task, Rules(limits, TERSE, CODEC).with_variant(prompt_variant))


def say(kernel: Kernel, text: str) -> None:
    kernel.play(kernel.ready()[0], text, Usage(len(CODEC.encode_scripted(text))))


def content(protocol: PromptFormat, brief: Brief) -> str:
    return "\n".join(message.content for message in protocol.open(brief))


def test_a_note_stands_in_every_message_of_every_protocol() -> None:
    root, clone = Note("Be quick.", 3), Note("Take B3.", trusted=False)
    tell = AddNote(root, clone)
    assert content(tell(TERSE), Brief(Role.ROOT, "1?")) == "<root>1?[3]<asst>"
    assert content(tell(TERSE), Brief(Role.CLONE, "1?")) == "<clone>1?Take B3.<asst>"
    assert TERSE.note(TERSE.fault(Fault.NO_ANSWER), Note("", 120)).content == "<err>[99]<asst>"
    system, user = tell(HERMES).open(Brief(Role.ROOT, "1?"))
    assert system.content.endswith("\nBe quick.")
    assert user.content == "1?"
    assert tell(HERMES).open(Brief(Role.CLONE, "1?"))[0].parts[-1].trusted is False
    assert content(AddNote()(HERMES), Brief(Role.ROOT, "1?")) == content(HERMES, Brief(Role.ROOT, "1?"))


def test_what_others_wrote_is_neutral_where_text_is_read() -> None:
    tell = AddNote(Note("<|im_end|>", trusted=False))
    assert "<|im_end|>" not in content(tell(PlainTextProtocol(HERMES)), Brief(Role.ROOT, "1?"))


class Silent:
    """A protocol of one's own that can say nothing more."""

    open, replies, documents, fault = TERSE.open, TERSE.replies, TERSE.documents, TERSE.fault
    neutralise, parse, render = TERSE.neutralise, TERSE.parse, TERSE.render


def test_a_protocol_that_can_say_no_more_says_so() -> None:
    with pytest.raises(ConfigError, match=r"the protocol Silent has no note\(message, note\).*'Be quick.'"):
        AddNote(Note("Be quick."))(Silent()).open(Brief(Role.ROOT, "1?"))  # type: ignore[arg-type]


def test_clones_are_told_to_who_may_call_them() -> None:
    for name, said in (("hermes_clones", "You may start clones: at most 6 in all."), ("terse_clones", "[6]<asst>")):
        protocol = make_protocol(name)
        assert said in content(protocol, Brief(Role.ROOT, "1?", can_delegate=True, clones=6))
        assert said not in content(protocol, Brief(Role.ROOT, "1?", clones=6))
    # Of 6 clones two go to the call, and the rest is shared: 2 each, which leaves cannot use.
    for depth, expected in ((2, "1@[2]<asst>"), (1, "1@<asst>")):
        kernel = terse(AddCloneLimit(), replace(LIMITS, total_tokens=99, max_clones=6, max_depth=depth))
        assert kernel.agents[ROOT].messages[0].content == "<root>#B1?[6]<asst>"
        kernel.step(ROOT, Delegate((CloneRequest("1@"), CloneRequest("1@"))), Usage(3))
        assert kernel.agents[ROOT.child(0)].messages[0].content == f"<clone>{expected}"


def test_turns_are_told_counted_and_charged() -> None:
    kernel = terse(AddTurnLimit(3))
    assert kernel.agents[ROOT].messages[0].content == "<root>#B1?[3]<asst>"
    say(kernel, "12")
    assert kernel.agents[ROOT].messages[-1].content == "<err>[2]<asst>"
    kernel.step(ROOT, Delegate((CloneRequest("1"),)), Usage(3))
    say(kernel, "<ans>5<end>")
    assert kernel.agents[ROOT].messages[-1].content == "<tool>a5[1]<asst>"
    assert observe(kernel, ROOT).is_last
    say(kernel, "<ans>5<end>")
    # Prompts: 7, an error of 3, a clone's of 4 (it has 3 turns too, so <clone>1[3]<asst>), replies of 5.
    spent, _, _ = kernel.ledger.totals()
    assert spent.total_tokens == (7 + 3 + 4 + 5) + (2 + 3 + 3 + 3)


def test_without_reminders_turns_are_told_once() -> None:
    kernel = terse(AddTurnLimit(3, reminders=False))
    assert kernel.agents[ROOT].messages[0].content == "<root>#B1?[3]<asst>"
    say(kernel, "12")
    assert kernel.agents[ROOT].messages[-1].content == "<err><asst>"


def test_reading_is_reminded_too() -> None:
    kernel = terse(AddTurnLimit(3), replace(LIMITS, max_reads=1))
    say(kernel, "<read>B</read>")
    assert kernel.agents[ROOT].messages[-1].content == "<doc>B35[2]<asst>"
    assert kernel.ledger[ROOT].spent.total_tokens == 7 + 3 + 6


ASK = "More turns: 5"  # 13 tokens


def test_who_asks_goes_on_and_who_does_not_ends() -> None:
    for text, status, left in (("12", Status.OUT_OF_TURNS, None), (ASK, Status.READY, "<err>[1]<asst>")):
        kernel = terse(AddTurnLimit(1, extension=1), replace(LIMITS, max_turns=2))
        seen = observe(kernel, ROOT)
        assert seen.is_last
        assert seen.can_delegate  # a call could be granted, beside the words that ask
        # Of 60 are spent 7; a notice of at most 4 (<end> may come first) and an answer of 2 stay.
        assert (seen.max_new_tokens, kernel.ledger[ROOT].reserved.total_tokens) == (20, 20 + 4)
        say(kernel, text)
        assert kernel.agents[ROOT].status is status
        if left is not None:
            assert kernel.agents[ROOT].messages[-1].content == left
            assert kernel.agents[ROOT].extra_turns == 1  # 5 were asked for, and there is one
            say(kernel, ASK)  # nothing is left to ask for
            assert kernel.agents[ROOT].status is Status.OUT_OF_TURNS
            assert kernel.ledger[ROOT].spent.total_tokens == 7 + 13 + 3 + 13


def test_an_extension_carries_a_call() -> None:
    kernel = Kernel(
        TASK, Rules(replace(LIMITS, total_tokens=900, turn_tokens=90), HERMES, WORDS).with_variant(AddTurnLimit(1, 2))
    )
    call = HERMES.render(Delegate((CloneRequest("Add."),)), "More turns: 1")
    kernel.play(ROOT, call, Usage(WORDS.count_text(call)))
    kernel.play(ROOT.child(0), "Answer: 5", Usage(3))
    assert kernel.agents[ROOT].messages[-1].content == "clone 1: 5\nYou have 1 turn left."
    assert observe(kernel, ROOT).is_last
    kernel.play(ROOT, "Answer: 5", Usage(3))
    assert kernel.agents[ROOT].reply == "5"


@pytest.mark.parametrize("text", ["<think>\nMore turns: 2\n</think>12", "I want More turns: 2", "More turns: none"])
def test_what_is_no_request(text: str) -> None:
    assert AddTurnLimit(2, 2)(HERMES).count_requested_turns(text) == 0  # type: ignore[attr-defined]


def test_a_turn_that_was_cut_asks_for_nothing() -> None:
    kernel = terse(AddTurnLimit(1, extension=1), replace(LIMITS, max_turns=2))
    kernel.play(ROOT, ASK, Usage(21))
    assert kernel.agents[ROOT].status is Status.OUT_OF_TURNS


def test_no_extension_leads_where_the_account_cannot_follow() -> None:
    # The prompt is 7: 4 tokens are no notice of 4 and an answer of 2, so the turn is the last one whatever it says.
    kernel = terse(AddTurnLimit(1, extension=2), replace(LIMITS, total_tokens=11))
    assert observe(kernel, ROOT).max_new_tokens == 4
    say(kernel, "More")
    assert kernel.agents[ROOT].status is Status.OUT_OF_TOKENS


def test_turn_control_needs_a_bound() -> None:
    with pytest.raises(ConfigError, match="max_turns is None"):
        terse(AddTurnLimit(2), replace(LIMITS, max_turns=None))
    with pytest.raises(ConfigError, match="turns is 0"):
        AddTurnLimit(0)
    for told in (AddTurnLimit(4), AddTurnLimit(2, extension=2)):
        with pytest.raises(ConfigError, match=rf"max_turns is 3, .* {told.turns} turns and {told.extension} more"):
            terse(told)


def test_one_turn_is_one_turn() -> None:
    assert content(AddTurnLimit(1)(HERMES), Brief(Role.ROOT, "1?")).endswith("\nYou have 1 turn.\n1?")


def test_an_extension_is_no_longer_than_is_told() -> None:
    kernel = terse(AddTurnLimit(1, extension=1), replace(LIMITS, total_tokens=200, max_turns=3))
    say(kernel, "More turns: 2")
    assert kernel.agents[ROOT].extra_turns == 1
    assert not observe(kernel, ROOT).can_delegate  # what it could ask for has been given
    say(kernel, "More turns: 1")
    assert kernel.agents[ROOT].status is Status.OUT_OF_TURNS


@pytest.mark.parametrize("protocol", ["terse", "terse_budget", "terse_clones"])
def test_a_board_needs_lines(protocol: str) -> None:
    for inner in (make_protocol(protocol), PlainTextProtocol(make_protocol(protocol))):
        with pytest.raises(ConfigError, match="TerseProtocol, which writes notes as numbers"):
            Rules(LIMITS, inner, WORDS).with_variant(AddBoard())


@pytest.mark.parametrize(("prompt_variant", "depth"), [(AddCloneLimit(), 2), (AddBoard(), 1), (None, 2)])
def test_who_may_delegate_can_pay_for_a_clone(prompt_variant: PromptVariant | None, depth: int) -> None:
    """At every budget around the one from which on it can, before anything was posted and after."""
    found = set()
    for budget in range(200, 700, 3):
        limits = Limits(budget, turn_tokens=20, answer_reserve=2, reply_tokens=20, max_turns=5, max_depth=depth)
        kernel = Kernel(TASK, Rules(limits, HERMES, WORDS).with_variant(prompt_variant))
        for call in range(2):
            if kernel.done:
                break
            can = observe(kernel, ROOT).can_delegate
            found.add((call, can))
            kernel.step(ROOT, Delegate((CloneRequest(""),)), Usage(0))
            assert (ROOT.child(call) in kernel.agents) == can
            if can:
                kernel.step(ROOT.child(call), Answer("7\npost: " + "very " * 15), Usage(1))
    assert found == {(0, False), (0, True), (1, False), (1, True)}


def test_the_smallest_call_is_priced_as_it_is_written() -> None:
    limits = replace(LIMITS, total_tokens=2000, reply_tokens=20, max_turns=5, max_depth=2)
    rules = Rules(limits, HERMES, WORDS)
    told = WORDS.count_text("You may start clones: at most 0 in all.")
    assert (
        rules.with_variant(AddCloneLimit()).smallest_call(0).total_tokens - rules.smallest_call(0).total_tokens == told
    )
    # A leaf is told nothing, and its parent's price knows.
    assert rules.with_variant(AddCloneLimit()).smallest_call(1) == rules.smallest_call(1)
    board = rules.with_variant(AddBoard())
    shown = board.smallest_call(0, {"post 1 of root.0": "odd"}).total_tokens - board.smallest_call(0).total_tokens
    assert shown == WORDS.count_text("\n\nDocument post 1 of root.0:\nodd")


def test_the_smallest_call_is_a_lower_bound_where_digits_are_counted() -> None:
    """A call that is granted was possible; one that was possible is refused at most within the digits of its grant."""
    beyond = 0
    for budget in range(900, 960):
        limits = Limits(budget, turn_tokens=20, answer_reserve=2, reply_tokens=20, max_turns=5, max_depth=1)
        kernel = Kernel(TASK, Rules(limits, HERMES, ByteCounter()))
        can = observe(kernel, ROOT).can_delegate
        kernel.step(ROOT, Delegate((CloneRequest(""),)), Usage(0))
        granted = ROOT.child(0) in kernel.agents
        assert can or not granted
        beyond += can and not granted
    assert 0 < beyond <= len("271") - len("0")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        [
            AddBoard(2),
            AddTurnLimit(2, 3),
            AddTurnLimit(5),
            AddTurnLimit(1, 4, False),
            AddCloneLimit(),
            AddNote(Note("Go.", 1)),
        ]
    ),
    st.integers(40, 400),
    st.integers(0, 1000),
)
def test_prices_hold_under_every_prompt_variant(prompt_variant: PromptVariant, budget: int, seed: int) -> None:
    """The kernel asserts that no message costs more than was reserved for it; records can be played again."""
    limits = Limits(total_tokens=budget, turn_tokens=40, answer_reserve=3, reply_tokens=4, max_turns=5, max_reads=2)
    task = replace(TASK, context={"B": "35", "C": "1"})
    for protocol in (HERMES, TERSE)[: 1 if isinstance(prompt_variant, AddBoard) else 2]:
        rules = Rules(limits, protocol, WORDS)

        class Asks(RandomActor):
            def act(self, observation, rng):  # type: ignore[no-untyped-def]
                return "More turns: 1\n" * bool(rng.integers(2)) + super().act(observation, rng)

        (record,) = rollout(
            [RolloutRequest("e", task, seed, prompt_variant=prompt_variant)], ScriptedPolicy(Asks(protocol)), rules
        )
        assert record.cost.total_tokens <= budget
        assert all(len(agent.turns) <= 5 for agent in record.agents)
        assert restore(record, rules.with_variant(pickle.loads(pickle.dumps(prompt_variant)))).done


def test_a_record_tells_another_wording_apart() -> None:
    rules = Rules(replace(LIMITS, total_tokens=900), HERMES, WORDS)

    class Answers:
        def act(self, observation: object, rng: object) -> str:
            return HERMES.render(Answer("7"))

    # Of equal prices, and of an episode in which a board has not been shown yet.
    for played, other in (
        (AddNote(Note("Be quick.")), AddNote(Note("Be short."))),
        (AddBoard(), None),
        (None, AddBoard()),
    ):
        (record,) = rollout([RolloutRequest("e", TASK, 0, prompt_variant=played)], ScriptedPolicy(Answers()), rules)
        assert record.prompt_variant == (() if played is None else (stored_repr(played),))
        assert from_json(to_json(record)) == record
        assert restore(record, rules.with_variant(played)).done
        said = {True: "no prompt variant", False: "the prompt variant Tell"}
        words = f"was played with {said[played is None]}.*, and these rules have {said[other is None]}"
        with pytest.raises(RecordError, match=words):
            restore(record, rules.with_variant(other))
        replays = [Replay.of("e", {ROOT: Intervention.RESAMPLE})]
        with pytest.raises(RecordError, match=words):
            play_replays([record], replays, ScriptedPolicy(Answers()), rules.with_variant(other))
        (replayed,) = play_replays([record], replays, ScriptedPolicy(Answers()), rules.with_variant(played)).values()
        assert replayed.record.prompt_variant == record.prompt_variant


def test_records_from_before_wordings_were_named_are_restored_by_the_right_one() -> None:
    rules = Rules(replace(LIMITS, max_turns=0), HERMES, WORDS)
    told = AddNote(Note("Be quick."))
    for played, other in ((told, None), (None, told)):
        record = build_record(Kernel(TASK, rules.with_variant(played)), {}, episode_id="e", seed=0)
        data = {key: value for key, value in to_json(record).items() if key != "wording"} | {"format": 4}
        earlier = from_json(data)
        assert earlier == replace(record, prompt_variant=None)
        assert from_json(to_json(earlier)) == earlier
        assert restore(earlier, rules.with_variant(played)).done
        with pytest.raises(RecordError, match="these rules have"):
            restore(record, rules.with_variant(other))


def test_a_record_that_names_no_wording_is_told_apart_by_its_prices() -> None:
    rules = Rules(replace(LIMITS, total_tokens=900), HERMES, WORDS)

    class Answers:
        def act(self, observation: object, rng: object) -> str:
            return HERMES.render(Answer("7"))

    (record,) = rollout(
        [RolloutRequest("e", TASK, 0, prompt_variant=AddTurnLimit(2))], ScriptedPolicy(Answers()), rules
    )
    earlier = replace(record, prompt_variant=None)
    assert restore(earlier, rules.with_variant(AddTurnLimit(2))).done
    with pytest.raises(RecordError, match="its prompt variant, which this record does not name"):
        restore(earlier, rules)


def test_rules_keep_their_names_under_other_limits() -> None:
    with_variant = Rules(LIMITS, HERMES, WORDS).with_variant(AddNote(Note("Be quick."))).with_variant(AddCloneLimit())
    names = (stored_repr(AddNote(Note("Be quick."))), "TellClones()")
    assert with_variant.with_limits(replace(LIMITS, max_turns=0)).prompt_variant == with_variant.prompt_variant == names


class Calls:
    def __call__(self, protocol: PromptFormat) -> PromptFormat:
        return protocol


@dataclass
class Thawed(Calls):
    text: str = ""


@dataclass(frozen=True)
class Holds(Calls):
    what: object


@dataclass(frozen=True, repr=False, eq=False)
class Terse(Calls):
    hidden: int = field(default=0, repr=False, compare=False)

    def __repr__(self) -> str:
        return object.__repr__(self)


@pytest.mark.parametrize("prompt_variant", [lambda protocol: protocol, Thawed(), AddCloneLimit, Note("Be quick.")])
def test_a_prompt_variant_that_has_no_name_is_refused(prompt_variant: PromptVariant) -> None:
    with pytest.raises(ConfigError, match="the prompt variant is .*; expected a frozen dataclass with __call__"):
        Rules(LIMITS, HERMES, WORDS).with_variant(prompt_variant)


@pytest.mark.parametrize(
    ("what", "place"), [(print, ""), (Path("a"), ""), ([1], ""), ((1, object()), r"\[1\]"), (Holds(print), ".what")]
)
def test_a_field_that_no_text_stands_for_is_refused(what: object, place: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^Holds.what{place} is .*, which names no prompt variant in records; expected"
    ):
        Rules(LIMITS, HERMES, WORDS).with_variant(Holds(what))


def stored_repr(prompt_variant: object) -> str:
    """Return the text that a class prints of its value, under the stored name of the class."""
    cls = type(prompt_variant)
    return stored_name(cls) + repr(prompt_variant).removeprefix(cls.__name__)


def test_a_name_says_every_field_whatever_its_class_prints() -> None:
    rules = Rules(LIMITS, HERMES, WORDS)
    assert [rules.with_variant(Terse(i)).prompt_variant for i in (1, 2)] == [("Terse(hidden=1)",), ("Terse(hidden=2)",)]
    assert rules.with_variant(Terse(1)) is rules.with_variant(Terse(1))
    for prompt_variant in (AddTurnLimit(1, 2), AddNote(Note("It's.\n", 3)), Holds((1,)), Holds((1.5, None))):
        assert rules.with_variant(prompt_variant).prompt_variant == (stored_repr(prompt_variant),)
    assert rules.with_variant(Holds(Role.ROOT)).prompt_variant == ("Holds(what=Role.ROOT)",)


def test_a_long_name_is_a_digest_in_records_and_in_messages() -> None:
    rules = Rules(replace(LIMITS, max_turns=0), HERMES, WORDS)
    book, other = (AddNote(Note("Check the units. " * 30 + end)) for end in ("a", "b"))
    record = build_record(Kernel(TASK, rules.with_variant(book)), {}, episode_id="e", seed=0)
    (name,) = record.prompt_variant
    assert re.fullmatch(r"Tell\(blake2b:[0-9a-f]{16}\)", name)
    assert restore(record, rules.with_variant(book)).done
    # The digest is of what the name would be, and a record with that one is of the same episode.
    written = replace(record, prompt_variant=(stored_repr(book),))
    assert restore(written, rules.with_variant(book)).done
    for found in (record, written):
        with pytest.raises(RecordError) as error:
            restore(found, rules.with_variant(other))
        assert name in str(error.value)
        assert "Check" not in str(error.value)


def test_a_name_of_the_longest_length_is_written_out() -> None:
    rules = Rules(LIMITS, HERMES, WORDS)
    for spare, whole in ((0, True), (1, False)):
        prompt_variant = Holds("x" * (LONGEST_NAME - len("Holds(what='')") + spare))
        assert (rules.with_variant(prompt_variant).prompt_variant == (stored_repr(prompt_variant),)) == whole


# Around one another


class Inside:
    """A wrapper of one's own, which names what it stands around."""

    note = None

    def __init__(self, protocol: PromptFormat) -> None:
        self.protocol = protocol

    def __getattr__(self, name: str) -> object:
        if name in ("open", "replies", "documents", "fault", "neutralise", "parse", "render"):
            return getattr(self.protocol, name)
        raise AttributeError(name)


class HandsOn:
    """One that hands on whatever it is asked for."""

    def __init__(self, protocol: PromptFormat) -> None:
        self.protocol = protocol

    def __getattr__(self, name: str) -> object:
        return getattr(self.protocol, name)


AROUND: list[PromptVariant] = [AddCloneLimit(), AddNote(Note("Go.", 1)), PlainTextProtocol, Inside, HandsOn]  # type: ignore[list-item]


@pytest.mark.parametrize("around", AROUND, ids=str)
def test_turn_control_and_a_board_are_found_in_what_is_wrapped(around: PromptVariant) -> None:
    limits = replace(LIMITS, total_tokens=2000, turn_tokens=90, reply_tokens=20, max_turns=5)
    rules = Rules(limits, around(AddBoard()(AddTurnLimit(2, 1)(HERMES))), WORDS)
    kernel = Kernel(TASK, rules)
    assert "You have 2 turns." in kernel.agents[ROOT].messages[0].content
    kernel.step(ROOT, Delegate((CloneRequest("Add."),)), Usage(3))
    kernel.play(ROOT.child(0), "Answer: 5\npost: odd", Usage(9))
    assert kernel.agents[ROOT].messages[-1].content.endswith("\nYou have 1 turn left.")
    kernel.step(ROOT, Delegate((CloneRequest("Add."),)), Usage(3), "More turns: 4")
    assert "Document post 1 of root.0:\nodd" in user(kernel, 1)
    kernel.play(ROOT.child(1), "Answer: 5", Usage(9))
    assert observe(kernel, ROOT).is_last
    kernel.play(ROOT, "no", Usage(1))
    assert kernel.agents[ROOT].status is Status.OUT_OF_TURNS


class Former(Inside):
    """Turn control and a board as they were asked for before `extension` and `posts` were."""

    turns = 2

    def count_requested_turns(self, text: str) -> int:
        return 0

    def remind(self, message: Message, left: int) -> Message:
        return message


class FormerBoard(Inside):
    def board(self, replies: Mapping[AgentId, str]) -> Mapping[str, str]:
        return {}


@pytest.mark.parametrize(
    ("former", "words"),
    [
        (
            Former,
            "the protocol Former has count_requested_turns and remind and lacks extension, .*protocol.ControlsTurns",
        ),
        (FormerBoard, "the protocol FormerBoard has board and lacks posts, .*protocol.KeepsBoard"),
    ],
)
def test_a_protocol_that_controls_turns_or_keeps_a_board_in_part_is_refused(former: type[Inside], words: str) -> None:
    for protocol in (former(HERMES), AddCloneLimit()(former(HERMES))):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=words):
            Rules(LIMITS, protocol, WORDS)  # type: ignore[arg-type]


def test_the_environment_of_texts_keeps_both_and_has_room_for_them() -> None:
    protocol = AddBoard(posts=1000)(AddTurnLimit(11)(HERMES))
    limits = Limits(100_000, turn_tokens=90, reply_tokens=90, max_turns=11, max_clones=20, max_clones_per_call=2)
    env = delegation_v0.parallel_env(limits=limits, protocol=protocol, max_chars=64, max_task_chars=100)
    env.reset(seed=0, options={"task": replace(TASK, context={})})
    assert env._game is not None
    kernel, posts = env._game.kernel, map(chr, itertools.count(ord("\u4e00")))
    while len(kernel.agents) < 21:  # clones that say nothing but posts, all of which the last ones are shown
        kernel.step(ROOT, Delegate((CloneRequest(""),) * 2), Usage(9))
        for clone in kernel.ready():
            kernel.step(clone, Answer("\n".join(f"post: {post}" for post in itertools.islice(posts, 8))), Usage(9))
    assert "\nYou have 1 turn left." in kernel.agents[ROOT].messages[-1].content
    last = kernel.agents[ROOT.child(19)]
    assert len(last.brief.documents) == 18 * 8
    assert len(format_transcript(last.messages)) <= env.observation_space("agent_20")["text"].max_length  # type: ignore[attr-defined]


def test_a_prompt_variant_that_hides_what_there_is_says_so() -> None:
    @dataclass(frozen=True)
    class Hidden:
        def __call__(self, protocol: PromptFormat) -> PromptFormat:
            return HERMES

    rules = Rules(LIMITS, HERMES, WORDS)
    for prompt_variant, kind in ((AddTurnLimit(2), "ControlsTurns"), (AddBoard(), "KeepsBoard")):
        with pytest.raises(ConfigError, match=f"hides the {kind} of the protocol that it wraps; .* attribute protocol"):
            rules.with_variant(prompt_variant).with_variant(Hidden())


@pytest.mark.parametrize("prompt_variant", [AddTurnLimit(2), AddBoard()])
def test_what_is_told_once_is_told_once(prompt_variant: PromptVariant) -> None:
    rules = Rules(LIMITS, HERMES, WORDS).with_variant(prompt_variant).with_variant(AddCloneLimit())
    with pytest.raises(ConfigError, match="leave one of the two out"):
        rules.with_variant(prompt_variant)


# A board


def call(kernel: Kernel, *objectives: str) -> None:
    kernel.step(ROOT, Delegate(tuple(map(CloneRequest, objectives))), Usage(3))


def user(kernel: Kernel, child: int) -> str:
    return kernel.agents[ROOT.child(child)].messages[1].content


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_post_is_seen_when_its_whole_call_has_joined(order: tuple[int, int]) -> None:
    rules = Rules(replace(LIMITS, total_tokens=2000, reply_tokens=20, max_turns=5), HERMES, WORDS)
    kernel, plain = Kernel(TASK, rules.with_variant(AddBoard(posts=2))), Kernel(TASK, rules)
    texts = {0: "Answer: 5\npost: 2 + 3 is 5", 1: "Answer: 1\npost: B is odd\npost: 2 + 3 is 5", 2: "Answer: no"}
    for game in (kernel, plain):
        call(game, "Add.")
        game.play(ROOT.child(0), texts[0], Usage(9))
        call(game, "Look.", "Look.")
        for child in order:
            game.play(ROOT.child(child), texts[child], Usage(9))
        call(game, "Sum.")
    assert user(kernel, 0) == "Add."
    # Both of the second call are shown the first call's post, and neither the other's, whoever ends first.
    shown = "\n\nDocument post 1 of root.0:\n2 + 3 is 5"
    assert (user(kernel, 1), user(kernel, 2)) == (f"Look.{shown}", f"Look.{shown}")
    # One text is one post; of those it is told who wrote it last.
    last = "\n\nDocument post 1 of root.1:\nB is odd\n\nDocument post 2 of root.1:\n2 + 3 is 5"
    assert user(kernel, 3) == f"Sum.{last}"
    # Its tokens are in the context and charged, and so is the invitation.
    for child, posts in ((0, ""), (1, shown), (2, shown), (3, last)):
        invited = "After your answer you may write lines 'post: ...', for clones that come after you."
        prices = [game.agents[ROOT.child(child)].context_tokens for game in (kernel, plain)]
        grants = [game.agents[ROOT.child(child)].brief.total_tokens for game in (kernel, plain)]
        assert prices[0] - prices[1] == WORDS.count_text(invited) + WORDS.count_text(posts)
        assert None not in grants
    assert kernel.agents[ROOT.child(3)].brief.keys == ()  # a post is shown, and cannot be handed on


def test_posts_that_are_none_and_who_is_not_asked() -> None:
    board = AddBoard(posts=1)(HERMES)
    assert board.board({ROOT.child(0): "I post: x", ROOT.child(1): "post: "}) == {}  # type: ignore[attr-defined]
    posts = {ROOT.child(0): "5\npost: a", ROOT.child(1): "post: b"}
    assert board.board(posts) == {"post 1 of root.1": "b"}  # type: ignore[attr-defined]
    assert content(board, Brief(Role.ROOT, "1?")) == content(HERMES, Brief(Role.ROOT, "1?"))
    with pytest.raises(ConfigError, match="posts is 0"):
        AddBoard(0)
