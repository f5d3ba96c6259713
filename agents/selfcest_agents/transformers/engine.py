"""An engine over any Llama-style causal model of transformers, with continuous batching.

Live rows occupy the first slots of one cache, without gaps. A finished row leaves at once, the last row moves into its
slot, and waiting requests are prefilled in padded batches behind the live rows. A prefill omits the last id of a
context. That id is the input of the row's first decoding step, so that all tokens are sampled by the same code.

Requests with the same context that are admitted together share a row, such as the episodes of a group or clones with
the same objective. The row is computed once, and each of its sequences draws with its own random stream. A sequence
that draws another token than the others continues in a new row, with a copy of the cache.

With `prefix_tokens` finished contexts are stored, so that an agent's next turn computes only its new part. Of several
requests with the same prefix one is prefilled first, and the others copy the prefix.

With `draft_tokens` a step also computes guesses of the next ids of a row, and each sequence keeps its draws as long as
they agree with the guess (see `drafts`). A step with guesses computes all its ids as one row without padding.

The model can be the learner's own object or a copy, for example in another dtype. `load_weights` receives new weights
in both cases, and copies only tensors that are not the model's own. `poll` changes the mode of the model while it
computes, so no other thread may use the model at the same time.

With a LoRA adapter per role, each row is computed with the adapter of its agent's role (see `row_adapters`). Requests
share rows and prefixes only with requests of the same role.

On a CPU large linear layers compute with a packed copy of their weights, which is faster for few rows (see
`packed_linear`).

Every sequence has its own random stream, but matrix products are rounded differently for different batch shapes. In
float32 the batch changes log-probabilities by about 1e-6, so a token differs only if a draw is that close to a boundary
between two tokens. The same sequence of calls gives exactly the same results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from selfcest_agents.engine import Completion, TokenRequest, check_requests, check_weights
from selfcest_agents.transformers.admission import CachedPrefix, plan_prefill
from selfcest_agents.transformers.drafts import DraftTable
from selfcest_agents.transformers.grouped_attention import IRREPLACEABLE, RaggedRows, use_grouped_attention
from selfcest_agents.transformers.packed_linear import PackedLinears
from selfcest_agents.transformers.prefix_store import PrefixStore
from selfcest_agents.transformers.row_adapters import RowAdapters
from selfcest_agents.transformers.sampling import draw, uniform_stream
from selfcest_agents.transformers.slot_cache import SlotCache
from selfcest_agents.weights import warn_of_slow_bfloat16
from selfcest_env.errors import PolicyError
from selfcest_env.types import FinishReason, Role

# A small prefill is almost as slow as a decoding step, so a few requests wait up to this many steps for further ones.
PATIENCE_STEPS = 8

# Maximum number of new ids of a row in one prefill pass. Attention with a mask computes every new id against every key
# of the pass, so shorter passes over a long context also skip most of the keys that the mask hides.
PREFILL_WIDTH = 1024


@dataclass(slots=True)
class _Sequence:
    """A request that is decoded.

    Attributes:
        uniforms: [max_new_tokens] one random number for each token to draw.
        ids: the context and the drawn tokens.
        logprobs: of the drawn tokens.
    """

    request: TokenRequest
    uniforms: npt.NDArray[np.float64]
    policy_version: int
    ids: list[int]
    logprobs: list[float] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Position of the last id, which is the input of the next step. So many positions are in the cache."""
        return len(self.ids) - 1

    @property
    def num_left(self) -> int:
        """Number of tokens that may still be drawn."""
        return self.request.max_new_tokens - len(self.logprobs)

    def next_uniforms(self, count: int) -> list[float]:
        """Return the random numbers of the next `count` tokens, or of all that are left."""
        drawn = len(self.logprobs)
        uniforms: list[float] = self.uniforms[drawn : drawn + count].tolist()
        return uniforms

    def completion(self, reason: FinishReason) -> Completion:
        token_ids = tuple(self.ids[len(self.request.context_ids) :])
        return Completion(self.request.key, token_ids, tuple(self.logprobs), reason, self.policy_version)


_Row = list[_Sequence]
"""Sequences with the same ids so far, the same temperature, adapter and policy version; never empty."""


class TransformersEngine:
    """An `Engine` over a transformers model in this process.

    Args:
        model: decoder with `position_ids`, 4-D masks and full attention. Its device and dtype do not change. `eager`
            attention is used as it is. Any other attention is computed by `sdpa`, for grouped heads without copies.
        stop_ids: ids that end a sequence, and are part of the completion.
        max_batch_size: maximum number of sequences that are decoded together. It bounds the cache, which has as many
            rows as there were different sequences at a time, of the longest context so far. The cache never shrinks.
        prefill_tokens: maximum number of ids of contexts that are prefilled together, including padding. A longer
            context is prefilled by itself. A context of more than `PREFILL_WIDTH` ids is computed in several passes, so
            that masks grow with its length and not with the square.
        prefix_tokens: maximum number of ids of finished contexts whose keys and values are stored for reuse, for each
            adapter; 0 for none. This is worth its cost for any model that is much larger than the tiny one.
        draft_tokens: maximum number of ids that are guessed for a row and step; 0 for none. This is worth its cost
            where sequences resemble each other and a step takes about as long for a few rows as for many.

    Raises:
        PolicyError: the model's attention depends on more than positions (sliding windows, dynamic RoPE), or it has
            layers with a state instead of a cache; `draft_tokens` is above 0 and its attention is `eager` or
            of windows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: Collection[int],
        max_batch_size: int = 256,
        prefill_tokens: int = 8192,
        prefix_tokens: int = 0,
        draft_tokens: int = 0,
    ) -> None:
        _check_model(model)
        if model.dtype == torch.bfloat16:
            warn_of_slow_bfloat16(model.device, "load the model in float32 (sampler.options.dtype: float32)")
        if max_batch_size < 1 or prefill_tokens < 1 or prefix_tokens < 0 or draft_tokens < 0:
            raise PolicyError(
                f"max_batch_size is {max_batch_size}, prefill_tokens is {prefill_tokens}, prefix_tokens is "
                f"{prefix_tokens} and draft_tokens is {draft_tokens}; expected at least 1, 1, 0 and 0"
            )
        attention = model.config.get_text_config()._attn_implementation
        if draft_tokens and attention in IRREPLACEABLE:
            raise PolicyError(
                f"draft_tokens is {draft_tokens} and the model's attention is {attention!r}, which cannot compute rows "
                "of different lengths; load the model with attn_implementation 'sdpa', or set draft_tokens to 0"
            )
        self._prefixes = {role: PrefixStore(prefix_tokens) for role in Role}
        self._drafts = DraftTable(draft_tokens, frozenset(stop_ids))
        self._policy_version = 0
        self._model = model
        self._linears = PackedLinears(model)
        self._adapters = RowAdapters(model)
        self._stop_ids = frozenset(stop_ids)
        self._max_batch_size = max_batch_size
        self._prefill_tokens = prefill_tokens
        config = model.config.get_text_config()
        self._max_positions = int(config.max_position_embeddings)
        self._vocab_size = int(config.vocab_size)
        self._cache = SlotCache()
        self._rows: list[_Row] = []
        self._waiting: deque[TokenRequest] = deque()
        self._steps_since_admission = 0

    @property
    def policy_version(self) -> int:
        """Version of the weights. Set it after the weights have changed; pending sequences keep their cache."""
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._policy_version = version
        for prefixes in self._prefixes.values():
            prefixes.clear()
        self._drafts.clear()
        self._linears.clear()
        self._adapters.clear()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """See `TrainableEngine`. Tensors of the model itself, as of a shared model, are not copied."""
        # The sent tensors are freed before contexts are recomputed, because both need memory.
        self._copy_weights(weights)
        self.policy_version = policy_version
        self._recompute_cache()

    def _copy_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        parameters = dict(self._model.named_parameters())
        tied_names = dict(self._model.named_parameters(remove_duplicate=False)).keys() - parameters.keys()
        tensors = {name: tensor for name, tensor in weights if name not in tied_names}
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        check_weights(shapes, {name: parameter.shape for name, parameter in parameters.items()})
        with torch.no_grad():
            for name, tensor in tensors.items():
                # A learner that shares the model sends its own parameters, which need no copy.
                if tensor.data_ptr() != parameters[name].data_ptr():
                    parameters[name].copy_(tensor)

    @property
    def pending(self) -> int:
        return self._num_live + len(self._waiting)

    @property
    def _num_live(self) -> int:
        return sum(map(len, self._rows))

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue all requests, or none and raise `PolicyError` if one of them could never be served."""
        pending_keys = {request.key for request in self._waiting}
        for row in self._rows:
            pending_keys.update(sequence.request.key for sequence in row)
        check_requests(requests, pending_keys, max_positions=self._max_positions, vocab_size=self._vocab_size)
        self._waiting.extend(requests)

    def poll(self) -> list[Completion]:
        """Decode until a sequence finishes; return all that finish at that step, `[]` if none is pending."""
        with self._inference():
            while self.pending:
                self._admit()
                finished = self._step()
                if finished:
                    return finished
        return []

    def cancel(self, keys: Iterable[str]) -> None:
        """Drop these requests; keys that are not pending are ignored."""
        cancelled = frozenset(keys)
        self._waiting = deque(request for request in self._waiting if request.key not in cancelled)
        for slot, row in enumerate(self._rows):
            self._rows[slot] = [sequence for sequence in row if sequence.request.key not in cancelled]
        with torch.inference_mode():
            self._release([slot for slot, row in enumerate(self._rows) if not row])

    @contextmanager
    def _inference(self) -> Iterator[None]:
        with (
            _evaluation_mode(self._model),
            use_grouped_attention(self._model, ragged=self._drafts.max_length > 0),
            self._linears.use(),
            self._adapters.use(),
            torch.inference_mode(),
        ):
            yield

    def _recompute_cache(self) -> None:
        """Compute the cache of all live rows again."""
        width = max((row[0].position for row in self._rows), default=0)
        rows_at_once = max(1, self._prefill_tokens // max(1, width))
        with self._inference():
            for first in range(0, len(self._rows), rows_at_once):
                rows = self._rows[first : first + rows_at_once]
                self._adapters.select([self._get_role(row[0].request) for row in rows])
                self._fill_cache(first, [tuple(row[0].ids[:-1]) for row in rows], [0] * len(rows))

    def _admit(self) -> None:
        """Move waiting requests into free slots, unless there are so few that it is better to wait for more."""
        num_admitted = min(len(self._waiting), self._max_batch_size - self._num_live)
        # A prefill is worth its cost if it adds at least an eighth of the live sequences.
        is_worthwhile = 8 * num_admitted >= self._num_live or self._steps_since_admission >= PATIENCE_STEPS
        if not num_admitted or not is_worthwhile:
            return
        self._steps_since_admission = 0
        new_rows: dict[tuple[tuple[int, ...], float, Role], _Row] = {}
        for _ in range(num_admitted):
            request = self._waiting.popleft()
            uniforms = uniform_stream(request.seed, request.max_new_tokens)
            row = new_rows.setdefault((request.context_ids, request.temperature, self._get_role(request)), [])
            row.append(_Sequence(request, uniforms, self.policy_version, list(request.context_ids)))
        row_by_key = {row[0].request.key: row for row in new_rows.values()}
        requests_by_role: dict[Role, list[TokenRequest]] = {}
        for row in new_rows.values():
            self._drafts.note(row[0].ids, 0)
            requests_by_role.setdefault(self._get_role(row[0].request), []).append(row[0].request)
        for role, requests in requests_by_role.items():
            while requests:
                plan = plan_prefill(requests, self._prefixes[role])
                for batch in plan.batches(self._prefill_tokens):
                    self._adapters.select([role] * len(batch))
                    self._prefill(batch, plan.cached_prefixes)
                    self._rows += [row_by_key[request.key] for request in batch]
                for slot, row in enumerate(self._rows):
                    if row[0].request.key in plan.shared_keys:
                        self._store_prefix(slot, role, row[0].request.context_ids[:-1])
                requests = plan.deferred

    def _get_role(self, request: TokenRequest) -> Role:
        """Return the role whose adapter computes a request; the root's if the model has no adapter per role."""
        return self._adapters.get_role(request.role)

    def _store_prefix(self, slot: int, role: Role, ids: tuple[int, ...]) -> None:
        if self._prefixes[role].wants(ids):
            self._prefixes[role].put(ids, self._cache.save(slot, len(ids)))

    def _prefill(self, requests: Sequence[TokenRequest], cached_prefixes: Mapping[str, CachedPrefix]) -> None:
        """Compute the cache of new slots behind the live rows, except for the cached prefixes."""
        first_slot = len(self._rows)
        lengths = []
        for slot, request in enumerate(requests, first_slot):
            length, saved = cached_prefixes[request.key]
            lengths.append(length)
            if saved is not None:
                self._cache.load(slot, saved, length)
        self._fill_cache(first_slot, [request.context_ids[:-1] for request in requests], lengths)

    def _fill_cache(self, first_slot: int, contexts: Sequence[tuple[int, ...]], cached: Sequence[int]) -> None:
        """Compute the cache of consecutive slots.

        Args:
            first_slot: slot of the first context.
            contexts: ids of each context.
            cached: number of positions of each context that are in the cache already.
        """
        new_ids = [ids[start:] for ids, start in zip(contexts, cached, strict=True)]
        width = max(map(len, new_ids))
        if width == 0:
            return
        device = self._model.device
        # The padding on the right is written behind the context. Decoding overwrites it before attention reads it.
        padded = torch.tensor([(*ids, *([0] * (width - len(ids)))) for ids in new_ids], device=device)
        positions = torch.tensor(cached, device=device)[:, None] + torch.arange(width, device=device)
        for start in range(0, width, PREFILL_WIDTH):
            stop = min(start + PREFILL_WIDTH, width)
            self._forward(first_slot, padded[:, start:stop], positions[:, start:stop], max(cached) + stop)

    def _step(self) -> list[Completion]:
        """Decode the last id of every live row, and its guess; draw tokens; return the sequences that finished."""
        device = self._model.device
        guesses = self._guess()
        counts = [1 + len(guess) for guess in guesses]
        ids = [[row[0].ids[-1], *guess] for row, guess in zip(self._rows, guesses, strict=True)]
        positions = [row[0].position for row in self._rows]
        is_ragged = max(counts) > 1
        self._adapters.select([self._get_role(row[0].request) for row in self._rows], counts if is_ragged else None)
        if not is_ragged:
            logits = self._forward(
                0,
                torch.tensor(ids, device=device),
                torch.tensor(positions, device=device)[:, None],
                max(positions) + 1,
            )
        else:
            logits = self._forward_ragged(ids, positions)
        row_of_draw: list[int] = []
        uniforms: list[float] = []
        first = 0
        for row, count in zip(self._rows, counts, strict=True):
            for sequence in row:
                sequence_uniforms = sequence.next_uniforms(count)
                uniforms += sequence_uniforms
                row_of_draw += range(first, first + len(sequence_uniforms))
            first += count
        temperatures = torch.tensor([row[0].request.temperature for row in self._rows], dtype=torch.float64)
        drawn_ids, logprobs = draw(
            logits,
            temperatures.repeat_interleave(torch.tensor(counts)).to(device),
            torch.tensor(row_of_draw, device=device),
            torch.tensor(uniforms, dtype=torch.float64, device=device),
        )
        if bool(logprobs.isnan().any()):
            raise PolicyError(
                f"the model gave NaN logits at policy_version {self.policy_version}, so its weights or inputs have "
                "diverged; check the gradient norms of the last updates, and restart from a checkpoint"
            )
        self._steps_since_admission += 1
        return self._append_tokens(guesses, iter(zip(drawn_ids.tolist(), logprobs.tolist(), strict=True)))

    def _guess(self) -> list[Sequence[int]]:
        """Guess the next ids of every row. The last token that a sequence may draw needs no guess."""
        guesses = []
        for row in self._rows:
            num_left = max(sequence.num_left for sequence in row)
            guesses.append(self._drafts.guess(row[0].ids, min(self._drafts.max_length, num_left - 1)))
        return guesses

    def _append_tokens(self, guesses: Sequence[Sequence[int]], draws: Iterator[tuple[int, float]]) -> list[Completion]:
        """Append the drawn tokens, split rows whose sequences differ now, and free the rows that have finished.

        Args:
            guesses: ids that were guessed for each row.
            draws: id and log-probability of every position of every sequence, in the order of rows.

        Returns:
            The completions of the finished sequences.
        """
        finished: list[Completion] = []
        for slot, (row, guess) in enumerate(zip(list(self._rows), guesses, strict=True)):
            num_before = len(row[0].ids)
            live_by_tokens: dict[tuple[int, ...], _Row] = {}
            deepest: _Sequence | None = None
            for sequence in row:
                row_draws = [next(draws) for _ in range(min(1 + len(guess), sequence.num_left))]
                reason = self._append_agreeing(sequence, guess, row_draws)
                if reason is None:
                    live_by_tokens.setdefault(tuple(sequence.ids[num_before:]), []).append(sequence)
                    continue
                finished.append(sequence.completion(reason))
                self._drafts.note(sequence.ids, num_before)
                if deepest is None or len(sequence.ids) > len(deepest.ids):
                    deepest = sequence
            # A context that older weights have computed must not be reused with the current ones.
            if deepest is not None and deepest.policy_version == self.policy_version:
                self._store_prefix(slot, self._get_role(deepest.request), tuple(deepest.ids[:-1]))
            for live_row in live_by_tokens.values():
                self._drafts.note(live_row[0].ids, num_before)
            # The first tokens continue in this slot, and all others in new slots with a copy of the cache.
            self._rows[slot], *split_rows = live_by_tokens.values() or [[]]
            for split_row in split_rows:
                self._cache.copy(slot, len(self._rows), split_row[0].position)
                self._rows.append(split_row)
        self._release([slot for slot, row in enumerate(self._rows) if not row])
        return finished

    def _append_agreeing(
        self, sequence: _Sequence, guess: Sequence[int], draws: Sequence[tuple[int, float]]
    ) -> FinishReason | None:
        """Append draws up to the first one that ends the sequence or differs from the guess.

        Draws behind it belong to another context than that of the sequence.

        Returns:
            Why the sequence ended, or `None`.
        """
        for index, (token, logprob) in enumerate(draws):
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            if token in self._stop_ids:
                return FinishReason.STOP
            if not sequence.num_left:
                return FinishReason.LENGTH
            if index < len(guess) and token != guess[index]:
                break
        return None

    def _release(self, slots: Sequence[int]) -> None:
        """Free these slots, and move the last rows into the gaps."""
        # From the last slot to the first, so that a row that moves into a gap is never one that is freed.
        for slot in sorted(slots, reverse=True):
            last = self._rows.pop()
            if slot < len(self._rows):
                self._rows[slot] = last
                self._cache.copy(len(self._rows), slot, last[0].position)

    def _forward(self, first_slot: int, ids: Tensor, positions: Tensor, length: int) -> Tensor:
        """Run the model over consecutive slots.

        Args:
            first_slot: slot of the first row.
            ids: [rows, tokens] input ids.
            positions: [rows, tokens] positions of the ids.
            length: number of cached positions that attention reads, at least all `positions` + 1.

        Returns:
            [rows, vocabulary] logits of the last token of each row.
        """
        rows = torch.arange(first_slot, first_slot + len(ids), device=ids.device)
        self._cache.prepare(slice(first_slot, first_slot + len(ids)), rows[:, None], positions, length)
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._make_mask(positions, length),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits
        return logits[:, -1]

    def _forward_ragged(self, ids: Sequence[Sequence[int]], positions: Sequence[int]) -> Tensor:
        """Run the model over all live rows, with any number of ids per row and without padding.

        Args:
            ids: input ids of each row.
            positions: position of the first id of each row.

        Returns:
            [ids, vocabulary] logits of every id of the first row, then of the second one, and so on.
        """
        device = self._model.device
        counts = torch.tensor([len(row_ids) for row_ids in ids])
        width = int(counts.max())
        # On the CPU, so that no pass waits for a GPU to count the ids.
        rows, columns = (torch.arange(width) < counts[:, None]).nonzero(as_tuple=True)
        length = int((torch.tensor(positions) + counts).max())
        rows, columns = rows.to(device), columns.to(device)
        padded_positions = torch.tensor(positions, device=device)[:, None] + torch.arange(width, device=device)
        flat_positions = padded_positions[rows, columns][None]
        self._cache.prepare(slice(0, len(ids)), rows[None], flat_positions, length)
        output = self._model(
            input_ids=torch.tensor([[token for row_ids in ids for token in row_ids]], device=device),
            position_ids=flat_positions,
            attention_mask=self._make_mask(padded_positions, length),
            past_key_values=self._cache,
            use_cache=True,
            ragged_rows=RaggedRows(num_rows=len(ids), longest=width, rows=rows, columns=columns),
        )
        logits: Tensor = output.logits
        return logits[0]

    def _make_mask(self, positions: Tensor, length: int) -> Tensor:
        """Return the additive mask [rows, 1, tokens, length]. A token attends to all positions up to its own."""
        visible = torch.arange(length, device=positions.device) <= positions[:, :, None]
        dtype = self._model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=positions.device)
        return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


@contextmanager
def _evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switch off dropout and gradient checkpointing within the block, if the model is in training mode."""
    was_training = model.training
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


def _check_model(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    sliding_window = getattr(config, "sliding_window", None)
    is_sliding = sliding_window is not None and getattr(config, "use_sliding_window", True)
    unsupported = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unsupported:
        raise PolicyError(
            f"{type(model).__name__} has layers of {', '.join(sorted(unsupported))}; expected full attention in every "
            "layer: use another model or another engine"
        )
    if is_sliding or rope in ("dynamic", "longrope"):
        raise PolicyError(
            f"{type(model).__name__} has sliding_window = {sliding_window} and rope_type = {rope!r}; expected full "
            "attention and a RoPE that depends on positions only, because rows of different lengths are batched: use "
            "another model or another engine"
        )
