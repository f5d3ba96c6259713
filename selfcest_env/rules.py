"""The rules of an episode: limits, protocol, and upper bounds on the tokens of the environment's own text."""

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
    """Limits, protocol and token counter of a set of episodes. Prices are computed once and cached.

    Attributes:
        prompt_variant: names of the variants that `with_variant` has put around the protocol, innermost first.
        max_turns: turns of one agent, extensions included; `None` if unlimited.

    Raises:
        ConfigError: the protocol promises more turns than `max_turns`, or implements an optional capability in part.
    """

    def __init__(
        self, limits: Limits, protocol: PromptFormat, counter: TokenCounter, *, prompt_variant: tuple[str, ...] = ()
    ) -> None:
        check_capabilities(protocol)
        self.limits = limits
        self.protocol = protocol
        self.counter = counter
        self.prompt_variant = prompt_variant
        self._reply_bounds: dict[int, int] = {}
        self._smallest_calls: dict[int, Amounts] = {}
        self._rules_by_limits: dict[Limits, Rules] = {}
        self._rules_by_variant: dict[tuple[type, str], Rules] = {}
        self.turn_control = find_capability(protocol, ControlsTurns)
        self._board = find_capability(protocol, KeepsBoard)
        self.max_turns = limits.max_turns
        if self.turn_control is not None:
            turns = self.turn_control.turns
            extension = self.turn_control.extension
            if turns < 1 or extension < 0 or limits.max_turns is None or turns + extension > limits.max_turns:
                raise ConfigError(
                    f"max_turns is {limits.max_turns}, and the protocol promises {turns} turns and {extension} more on "
                    "request; expected at least 1 turn, and a max_turns of at least their sum"
                )
            self.max_turns = turns + extension

    def with_variant(self, prompt_variant: PromptVariant | None) -> Rules:
        """Return the same game with a prompt variant around its protocol; `None` returns these rules.

        Raises:
            ConfigError: the variant has no name for records, or it hides a capability of the protocol.
        """
        if prompt_variant is None:
            return self
        key = type(prompt_variant), prompt_variant_name(prompt_variant)
        if key not in self._rules_by_variant:
            protocol = prompt_variant(self.protocol)
            for kind in (ControlsTurns, KeepsBoard):
                if find_capability(self.protocol, kind) is not None and find_capability(protocol, kind) is None:
                    raise ConfigError(
                        f"{type(protocol).__name__}, which {prompt_variant!r} makes, hides the {kind.__name__} of "
                        "the protocol that it wraps; store that protocol in its attribute protocol"
                    )
            names = (*self.prompt_variant, key[1])
            self._rules_by_variant[key] = Rules(self.limits, protocol, self.counter, prompt_variant=names)
        return self._rules_by_variant[key]

    def with_limits(self, limits: Limits) -> Rules:
        """Return the same game under other limits. Equal limits return one object, so that prices stay cached."""
        if limits == self.limits:
            return self
        if limits not in self._rules_by_limits:
            self._rules_by_limits[limits] = Rules(
                limits, self.protocol, self.counter, prompt_variant=self.prompt_variant
            )
        return self._rules_by_limits[limits]

    @property
    def answer_tokens(self) -> int:
        """The tokens that an agent keeps for one more answer: `answer_reserve`, but at least 1.

        With one token kept, a turn follows every block that the environment writes, so the record holds all costs.
        """
        return max(1, self.limits.answer_reserve)

    def turn_limit(self, extra: int) -> int | None:
        """Return the limit on turns of an agent with `extra` additional turns; `None` if unlimited."""
        return self.max_turns if self.turn_control is None else self.turn_control.turns + extra

    def extend_turns(self, extra: int, text: str) -> int:
        """Return the additional turns of an agent after a text, which may ask for more; at most the extension."""
        if self.turn_control is None:
            return extra
        return min(extra + max(0, self.turn_control.count_requested_turns(text)), self.turn_control.extension)

    def with_reminder(self, message: Message, left: int | None) -> Message:
        """Return the message with a reminder of the turns left, if the protocol controls turns."""
        return message if self.turn_control is None or left is None else self.turn_control.remind(message, left)

    @property
    def keeps_board(self) -> bool:
        """Whether new clones are shown notes from replies that have joined."""
        return self._board is not None

    def board(self, replies: Mapping[AgentId, str]) -> Mapping[str, str]:
        """Return the documents that a new clone is shown, from the joined replies of its parent's earlier clones."""
        return {} if self._board is None else self._board.board(replies)

    def _reminders(self, message: Message) -> tuple[Message, ...]:
        """Return the message with each reminder that it can get."""
        if self.turn_control is None or self.max_turns is None:
            return (message,)
        return tuple(self.turn_control.remind(message, left) for left in range(self.max_turns))

    @cached_property
    def notice_tokens(self) -> int:
        """The maximum tokens of a line about a fault."""
        prices: list[int] = []
        for fault in Fault:
            for message in self._reminders(self.protocol.fault(fault)):
                # After a cut generation the block must also close the turn, which may cost more.
                prices.append(self.counter.count((message,), Boundary.AFTER_STOP))
                prices.append(self.counter.count((message,), Boundary.AFTER_LENGTH))
        return max(prices)

    def reply_bound(self, num_replies: int) -> int:
        """Return the maximum tokens of a message with this many replies: its template plus each reply at its limit."""
        if num_replies not in self._reply_bounds:
            self._reply_bounds[num_replies] = self._bound_replies(num_replies)
        return self._reply_bounds[num_replies]

    def _bound_replies(self, num_replies: int) -> int:
        def price(*replies: Reply) -> int:
            messages = self._reminders(self.protocol.replies(replies))
            return max(self.counter.count((message,), Boundary.AFTER_STOP) for message in messages)

        # A reply may also be a failure, whose text can be longer than `reply_tokens`.
        failures: list[Fault | Status] = [Fault.PROMPT_TOO_LONG, *(status for status in Status if status.is_terminal)]
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
        """Return the brief of a clone.

        Args:
            depth: its depth in the tree.
            objective: its objective.
            documents: shared documents by key.
            grant: total tokens of its account, `None` if unlimited.
            clones: clones of its account, `None` if unlimited.
            board: documents shown before its own. It cannot name their keys.
        """
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
        """Return the amounts of the smallest call by an agent at this depth.

        They cover one clone with an empty objective, which sees the board and generates one token, its reply, and one
        more answer of the parent. This is a lower bound where a protocol writes the clone's grant or number of clones
        in digits: both are priced as 0.
        """
        if board:
            return self._price_call(depth, board)
        if depth not in self._smallest_calls:
            self._smallest_calls[depth] = self._price_call(depth, {})
        return self._smallest_calls[depth]

    def _price_call(self, depth: int, board: Mapping[str, str]) -> Amounts:
        # An account may be bounded in an episode that is not, since a call may ask for `max_tokens`. The clone's prompt
        # then states its grant. An account without a bound can pay any price.
        clones = None if self.limits.max_clones is None else 0
        opening = self.protocol.open(self.clone_brief(depth + 1, "", {}, 0, clones, board))
        prompt = self.counter.count(opening, Boundary.OPENING)
        reserve = self.answer_tokens
        return Amounts(self.reply_bound(1) + reserve + prompt + 1, reserve + 1, 1)
