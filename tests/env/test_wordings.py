"""What is said around a protocol: in every form, at its price, and held by the kernel."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfcest_agents.codec import TerseCodec
from selfcest_agents.policy import ScriptedPolicy
from selfcest_agents.rollout import RolloutRequest, rollout
from selfcest_agents.scripted import RandomActor
from selfcest_agents.tiny import TinyTokenizer
from selfcest_env.counterfactual import restore
from selfcest_env.errors import ConfigError, RecordError
from selfcest_env.kernel import Kernel
from selfcest_env.protocol import Brief, Note, ProtocolText, Wording
from selfcest_env.rules import Rules
from selfcest_env.text.counters import WordCounter
from selfcest_env.text.hermes import HermesProtocol
from selfcest_env.text.markers import PlainTextProtocol
from selfcest_env.text.protocols import make_protocol
from selfcest_env.text.terse import TerseProtocol
from selfcest_env.text.wordings import Tell, TellBoard, TellClones, TellTurns
from selfcest_env.types import ROOT, Answer, CloneRequest, Delegate, Fault, Limits, Role, Status, Task, Usage
from selfcest_env.views import observe

HERMES, TERSE, CODEC, WORDS = HermesProtocol(), TerseProtocol(), TerseCodec(TinyTokenizer()), WordCounter()
LIMITS = Limits(total_tokens=60, turn_tokens=20, answer_reserve=2, reply_tokens=3, max_turns=3)
TASK = Task("t", "1?", "7", "own", {"B": "35"})


def terse(wording: Wording | None, limits: Limits = LIMITS, task: Task = TASK) -> Kernel:
    return Kernel(task, Rules(limits, TERSE, CODEC).worded(wording))


def say(kernel: Kernel, text: str) -> None:
    kernel.play(kernel.ready()[0], text, Usage(len(CODEC.encode_own(text))))


def content(protocol: ProtocolText, brief: Brief) -> str:
    return "\n".join(message.content for message in protocol.open(brief))


def test_a_note_stands_in_every_message_of_every_protocol() -> None:
    root, clone = Note("Be quick.", 3), Note("Take B3.", trusted=False)
    tell = Tell(root, clone)
    assert content(tell(TERSE), Brief(Role.ROOT, "1?")) == "<root>1?[3]<asst>"
    assert content(tell(TERSE), Brief(Role.CLONE, "1?")) == "<clone>1?Take B3.<asst>"
    assert TERSE.note(TERSE.fault(Fault.NO_ANSWER), Note("", 120)).content == "<err>[99]<asst>"
    system, user = tell(HERMES).open(Brief(Role.ROOT, "1?"))
    assert system.content.endswith("\nBe quick.")
    assert user.content == "1?"
    assert tell(HERMES).open(Brief(Role.CLONE, "1?"))[0].parts[-1].trusted is False
    assert content(Tell()(HERMES), Brief(Role.ROOT, "1?")) == content(HERMES, Brief(Role.ROOT, "1?"))


def test_what_others_wrote_is_neutral_where_text_is_read() -> None:
    tell = Tell(Note("<|im_end|>", trusted=False))
    assert "<|im_end|>" not in content(tell(PlainTextProtocol(HERMES)), Brief(Role.ROOT, "1?"))


class Silent:
    """A protocol of one's own that can say nothing more."""

    open, replies, documents, fault = TERSE.open, TERSE.replies, TERSE.documents, TERSE.fault
    neutralise, parse, render = TERSE.neutralise, TERSE.parse, TERSE.render


def test_a_protocol_that_can_say_no_more_says_so() -> None:
    with pytest.raises(ConfigError, match=r"the protocol Silent has no note\(message, note\).*'Be quick.'"):
        Tell(Note("Be quick."))(Silent()).open(Brief(Role.ROOT, "1?"))  # type: ignore[arg-type]


def test_clones_are_told_to_who_may_call_them() -> None:
    for name, said in (("hermes_clones", "You may start at most 6 clones in all."), ("terse_clones", "[6]<asst>")):
        protocol = make_protocol(name)
        assert said in content(protocol, Brief(Role.ROOT, "1?", can_delegate=True, clones=6))
        assert said not in content(protocol, Brief(Role.ROOT, "1?", clones=6))
    # Of 6 clones two go to the call, and the rest is shared: 2 each, which leaves cannot use.
    for depth, expected in ((2, "1@[2]<asst>"), (1, "1@<asst>")):
        kernel = terse(TellClones(), replace(LIMITS, total_tokens=99, max_clones=6, max_depth=depth))
        assert kernel.agents[ROOT].messages[0].content == "<root>#B1?[6]<asst>"
        kernel.step(ROOT, Delegate((CloneRequest("1@"), CloneRequest("1@"))), Usage(3))
        assert kernel.agents[ROOT.child(0)].messages[0].content == f"<clone>{expected}"


def test_turns_are_told_counted_and_charged() -> None:
    kernel = terse(TellTurns(3))
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
    kernel = terse(TellTurns(3, reminders=False))
    assert kernel.agents[ROOT].messages[0].content == "<root>#B1?[3]<asst>"
    say(kernel, "12")
    assert kernel.agents[ROOT].messages[-1].content == "<err><asst>"


def test_reading_is_reminded_too() -> None:
    kernel = terse(TellTurns(3), replace(LIMITS, max_reads=1))
    say(kernel, "<read>B</read>")
    assert kernel.agents[ROOT].messages[-1].content == "<doc>B35[2]<asst>"
    assert kernel.ledger[ROOT].spent.total_tokens == 7 + 3 + 6


ASK = "More turns: 5"  # 13 tokens


def test_who_asks_goes_on_and_who_does_not_ends() -> None:
    for text, status, left in (("12", Status.OUT_OF_TURNS, None), (ASK, Status.READY, "<err>[1]<asst>")):
        kernel = terse(TellTurns(1, extension=1), replace(LIMITS, max_turns=2))
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
        TASK, Rules(replace(LIMITS, total_tokens=900, turn_tokens=90), HERMES, WORDS).worded(TellTurns(1, 2))
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
    assert TellTurns(2, 2)(HERMES).asked(text) == 0  # type: ignore[attr-defined]


def test_a_turn_that_was_cut_asks_for_nothing() -> None:
    kernel = terse(TellTurns(1, extension=1), replace(LIMITS, max_turns=2))
    kernel.play(ROOT, ASK, Usage(21))
    assert kernel.agents[ROOT].status is Status.OUT_OF_TURNS


def test_no_extension_leads_where_the_account_cannot_follow() -> None:
    # The prompt is 7: 4 tokens are no notice of 4 and an answer of 2, so the turn is the last one whatever it says.
    kernel = terse(TellTurns(1, extension=2), replace(LIMITS, total_tokens=11))
    assert observe(kernel, ROOT).max_new_tokens == 4
    say(kernel, "More")
    assert kernel.agents[ROOT].status is Status.OUT_OF_TOKENS


def test_turn_control_needs_a_bound() -> None:
    with pytest.raises(ConfigError, match="max_turns is None"):
        terse(TellTurns(2), replace(LIMITS, max_turns=None))
    with pytest.raises(ConfigError, match="turns is 0"):
        TellTurns(0)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        [TellBoard(2), TellTurns(2, 3), TellTurns(5), TellTurns(1, 4, False), TellClones(), Tell(Note("Go.", 1))]
    ),
    st.integers(40, 400),
    st.integers(0, 1000),
)
def test_prices_hold_under_every_wording(wording: Wording, budget: int, seed: int) -> None:
    """The kernel asserts that no message costs more than was reserved for it; records can be played again."""
    limits = Limits(total_tokens=budget, turn_tokens=40, answer_reserve=3, reply_tokens=4, max_turns=5, max_reads=2)
    task = replace(TASK, context={"B": "35", "C": "1"})
    for protocol, counter in ((HERMES, WORDS), (TERSE, WORDS)):
        rules = Rules(limits, protocol, counter)

        class Asks(RandomActor):
            def act(self, observation, rng):  # type: ignore[no-untyped-def]
                return "More turns: 1\n" * bool(rng.integers(2)) + super().act(observation, rng)

        (record,) = rollout([RolloutRequest("e", task, seed, wording=wording)], ScriptedPolicy(Asks(protocol)), rules)
        assert record.cost.total_tokens <= budget
        assert all(len(agent.turns) <= 5 for agent in record.agents)
        assert restore(record, rules.worded(pickle.loads(pickle.dumps(wording)))).done


def test_a_record_tells_another_wording_apart() -> None:
    rules = Rules(replace(LIMITS, total_tokens=900), HERMES, WORDS)

    class Answers:
        def act(self, observation: object, rng: object) -> str:
            return HERMES.render(Answer("7"))

    (record,) = rollout([RolloutRequest("e", TASK, 0, wording=TellTurns(3))], ScriptedPolicy(Answers()), rules)
    with pytest.raises(RecordError, match="cannot be restored"):
        restore(record, rules)


# A board


def call(kernel: Kernel, *objectives: str) -> None:
    kernel.step(ROOT, Delegate(tuple(map(CloneRequest, objectives))), Usage(3))


def user(kernel: Kernel, child: int) -> str:
    return kernel.agents[ROOT.child(child)].messages[1].content


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_post_is_seen_when_its_whole_call_has_joined(order: tuple[int, int]) -> None:
    rules = Rules(replace(LIMITS, total_tokens=2000, reply_tokens=20, max_turns=5), HERMES, WORDS)
    kernel, plain = Kernel(TASK, rules.worded(TellBoard(posts=2))), Kernel(TASK, rules)
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
    board = TellBoard(posts=1)(HERMES)
    assert board.board({ROOT.child(0): "I post: x", ROOT.child(1): "post: "}) == {}  # type: ignore[attr-defined]
    posts = {ROOT.child(0): "5\npost: a", ROOT.child(1): "post: b"}
    assert board.board(posts) == {"post 1 of root.1": "b"}  # type: ignore[attr-defined]
    assert content(board, Brief(Role.ROOT, "1?")) == content(HERMES, Brief(Role.ROOT, "1?"))
    with pytest.raises(ConfigError, match="posts is 0"):
        TellBoard(0)
