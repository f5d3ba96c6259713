"""The rules one episode is played by: limits, protocol, and what the environment's own text costs at most."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from selfcest_env.budget import Amounts
from selfcest_env.errors import ConfigError
from selfcest_env.protocol import (
    Brief,
    ControlsTurns,
    KeepsBoard,
    PromptFormat,
    PromptVariant,
    Reply,
    check_capabilities,
    find_capability,
    prompt_variant_name,
)
from selfcest_env.types import AgentId, Boundary, Fault, Limits, Message, Role, Status, TokenCounter


class Rules:
    """Limits, protocol and counter of a set of episodes; prices are worked out once and remembered.

    Attributes:
        prompt_variant: names of the variants that `with_variant` has put around the protocol, innermost first.
        max_turns: of one agent, extensions included, `None` if unlimited.

    Raises `ConfigError` for a protocol that tells agents of more turns than there are, or that has some members of an
    optional kind and lacks others.
    """

    def __init__(
        self, limits: Limits, protocol: PromptFormat, counter: TokenCounter, *, prompt_variant: tuple[str, ...] = ()
    ) -> None:
        self.limits, self.protocol, self.counter, self.prompt_variant = limits, protocol, counter, prompt_variant
        check_capabilities(protocol)
        self._reply_bounds: dict[int, int] = {}
        self._smallest_calls: dict[int, Amounts] = {}
        self._under: dict[Limits, Rules] = {}
        self._variants: dict[tuple[type, str], Rules] = {}
        self.turn_control, self._board = find_capability(protocol, ControlsTurns), find_capability(protocol, KeepsBoard)
        self.max_turns = limits.max_turns
        if self.turn_control is not None:
            turns, extension = self.turn_control.turns, self.turn_control.extension
            if turns < 1 or extension < 0 or limits.max_turns is None or turns + extension > limits.max_turns:
                raise ConfigError(
                    f"max_turns is {limits.max_turns}, and agents are told of {turns} turns and {extension} more for "
                    "who asks; expected at least 1 turn, and a max_turns of at least their sum"
                )
            self.max_turns = turns + extension

    def with_variant(self, prompt_variant: PromptVariant | None) -> Rules:
        """The same game with this said around its protocol.

        Raises `ConfigError` for a prompt variant that records could not name, or that hides what the protocol offers.
        """
        if prompt_variant is None:
            return self
        key = type(prompt_variant), prompt_variant_name(prompt_variant)
        if key not in self._variants:
            protocol = prompt_variant(self.protocol)
            for kind in (ControlsTurns, KeepsBoard):
                if find_capability(self.protocol, kind) is not None and find_capability(protocol, kind) is None:
                    raise ConfigError(
                        f"{type(protocol).__name__}, which {prompt_variant!r} makes, hides the {kind.__name__} of "
                        "the protocol that it wraps; give it that protocol as its attribute protocol"
                    )
            names = (*self.prompt_variant, key[1])
            self._variants[key] = Rules(self.limits, protocol, self.counter, prompt_variant=names)
        return self._variants[key]

    def with_limits(self, limits: Limits) -> Rules:
        """The same game under other limits: one object for each, so that prices stay remembered."""
        if limits == self.limits:
            return self
        if limits not in self._under:
            self._under[limits] = Rules(limits, self.protocol, self.counter, prompt_variant=self.prompt_variant)
        return self._under[limits]

    @property
    def answer_tokens(self) -> int:
        """What an agent keeps for one more answer. No answer is free: a reserve of 0 still keeps one token, so what the
        environment writes into a context is always followed by a turn and no cost is lost from the record."""
        return max(1, self.limits.answer_reserve)

    def turns(self, extra: int) -> int | None:
        """Turns that an agent may take in all which has been given so many more."""
        return self.max_turns if self.turn_control is None else self.turn_control.turns + extra

    def more_turns(self, extra: int, text: str) -> int:
        """`extra` with what a turn asks for, as far as the extension goes."""
        if self.turn_control is None:
            return extra
        return min(extra + max(0, self.turn_control.asked(text)), self.turn_control.extension)

    def with_reminder(self, message: Message, left: int | None) -> Message:
        """The message before a turn, of which there are so many left."""
        return message if self.turn_control is None or left is None else self.turn_control.remind(message, left)

    @property
    def keeps_board(self) -> bool:
        """Whether a new clone may be shown something of replies that have joined."""
        return self._board is not None

    def board(self, replies: Mapping[AgentId, str]) -> Mapping[str, str]:
        """What a new clone is shown of the replies of its parent's clones that have joined."""
        return {} if self._board is None else self._board.board(replies)

    def _reminders(self, message: Message) -> tuple[Message, ...]:
        """All that a message can become."""
        if self.turn_control is None or self.max_turns is None:
            return (message,)
        return tuple(self.turn_control.remind(message, left) for left in range(self.max_turns))

    @cached_property
    def notice_tokens(self) -> int:
        """Most tokens that a line about a fault can have."""
        return max(
            self.counter.count((message,), boundary)
            for fault in Fault
            for message in self._reminders(self.protocol.fault(fault))
            for boundary in (Boundary.AFTER_STOP, Boundary.AFTER_LENGTH)
        )

    def reply_bound(self, num_replies: int) -> int:
        """Most tokens that the message with this many replies can have: its template and every reply at its limit."""
        if num_replies not in self._reply_bounds:
            self._reply_bounds[num_replies] = self._bound_replies(num_replies)
        return self._reply_bounds[num_replies]

    def _bound_replies(self, num_replies: int) -> int:
        def price(*replies: Reply) -> int:
            messages = self._reminders(self.protocol.replies(replies))
            return max(self.counter.count((message,), Boundary.AFTER_STOP) for message in messages)

        failures: list[Fault | Status] = [Fault.PROMPT_TOO_LONG, *(s for s in Status if s.is_terminal)]
        longest_failure = max(price(Reply(failure=failure)) for failure in failures) - price(Reply(""))
        template = price(*[Reply("")] * num_replies)
        return template + num_replies * max(self.limits.reply_tokens or 0, longest_failure)

    def clone_brief(
        self,
        depth: int,
        objective: str,
        documents: Mapping[str, str],
        grant: int | None,
        clones: int | None = None,
        board: Mapping[str, str] | None = None,
    ) -> Brief:
        """What a clone at this depth is told; `grant` and `clones` are those of its account, `board` is shown to it
        before its own documents and gives it no key."""
        limits = self.limits
        return Brief(
            Role.CLONE,
            objective,
            keys=tuple(documents),
            documents={**(board or {}), **documents},
            can_delegate=limits.delegation and (limits.max_depth is None or depth < limits.max_depth),
            total_tokens=grant,
            reply_tokens=limits.reply_tokens,
            clones=clones,
        )

    def smallest_call(self, depth: int, board: Mapping[str, str] | None = None) -> Amounts:
        """Least that an agent at this depth needs to delegate at all: one clone with an empty objective that is shown
        the board and may say one token, its reply, and one more answer.

        A lower bound where a protocol tells a clone its grant or its clones in digits: both are priced as 0.
        """
        if board:
            return self._price_call(depth, board)
        if depth not in self._smallest_calls:
            self._smallest_calls[depth] = self._price_call(depth, {})
        return self._smallest_calls[depth]

    def _price_call(self, depth: int, board: Mapping[str, str]) -> Amounts:
        grant = None if self.limits.total_tokens is None else 0
        clones = None if self.limits.max_clones is None else 0
        opening = self.protocol.open(self.clone_brief(depth + 1, "", {}, grant, clones, board))
        prompt = self.counter.count(opening, Boundary.OPENING)
        reserve = self.answer_tokens
        return Amounts(self.reply_bound(1) + reserve + prompt + 1, reserve + 1, 1)
