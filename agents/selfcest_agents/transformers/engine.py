"""An engine over any Llama-style causal model of transformers, with continuous batching.

Live rows occupy the first slots of one cache, without gaps: a finished one leaves at once, the last one takes its
slot, and waiting requests are prefilled in padded batches behind the live ones. A prefill leaves out a context's last
id; that id is the row's input at its first decoding step, so every token is sampled in the same place.

Requests with the same context that are admitted together share a row, as the episodes of a group and the clones with
one objective do: the row is computed once, each of its sequences draws with its own random stream, and one that draws
another token than the others goes on in a row of its own, with a copy of the cache.

With `prefix_tokens` finished contexts are kept, so that an agent's next turn computes only what is new to it, and of
requests that begin alike one is prefilled first and the others copy what they share.

The model may be the learner's own object or a copy, as one of another dtype. Either way `load_weights` is how new
weights come in; weights that are there already cost no copy. During `poll` the model computes as an engine needs it, so
no other thread may use it then.

On a CPU larger linear layers compute from a copy that suits few rows (see `packed_linear`).

A row's random stream is its own, but matrix products round differently for different batch shapes: log-probabilities
move by about 1e-6 in float32 with the batch composition, so a token can differ only where a uniform falls that close
to a boundary. The same sequence of calls repeats exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from selfcest_agents.engine import Completion, TokenRequest, check_requests, check_weights
from selfcest_agents.transformers.admission import Start, next_wave
from selfcest_agents.transformers.grouped_attention import grouped
from selfcest_agents.transformers.packed_linear import PackedLinears
from selfcest_agents.transformers.prefix_store import PrefixStore
from selfcest_agents.transformers.sampling import draw, uniform_stream
from selfcest_agents.transformers.slot_cache import SlotCache
from selfcest_env.errors import PolicyError
from selfcest_env.types import FinishReason

PATIENCE_STEPS = 8  # a small prefill costs a good part of a decoding step, so trickling requests wait for each other


@dataclass(slots=True)
class _Sequence:
    """A request being decoded; `uniforms` is its whole random stream, [max_new_tokens]."""

    request: TokenRequest
    uniforms: npt.NDArray[np.float64]
    policy_version: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def input_id(self) -> int:
        return self.token_ids[-1] if self.token_ids else self.request.context_ids[-1]

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.request.context_ids, *self.token_ids)

    @property
    def position(self) -> int:
        return len(self.request.context_ids) + len(self.token_ids) - 1

    @property
    def uniform(self) -> float:
        return float(self.uniforms[len(self.token_ids)])

    def completion(self, reason: FinishReason) -> Completion:
        return Completion(self.request.key, tuple(self.token_ids), tuple(self.logprobs), reason, self.policy_version)


_Row = list[_Sequence]
"""Sequences with the same ids so far, at one temperature and of one policy version; never empty."""


class TransformersEngine:
    """`Engine` over a transformers model that lives in this process.

    Args:
        model: a decoder with `position_ids`, 4-D masks and full attention. Its device and dtype are used as they are,
            and `eager` attention; any other is computed by `sdpa`, over grouped heads without its copies.
        stop_ids: ids that end a sequence; a sampled stop id is part of the completion.
        max_batch_size: sequences decoded together at most. It bounds the cache, which holds as many rows as there were
            different ones at a time, of the longest context met so far, and is kept as long as the engine.
        prefill_tokens: ids, padding included, that one prefill pass holds at most (one context may exceed it alone).
        prefix_tokens: ids of finished contexts whose keys and values are kept for reuse at most; 0 for none. It pays
            where a prefill costs more than a copy, so for any model much larger than the tiny one.

    Raises:
        PolicyError: a model whose attention depends on more than positions (sliding windows, dynamic RoPE), or with
            layers that have a state instead of a cache.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: Collection[int],
        max_batch_size: int = 256,
        prefill_tokens: int = 8192,
        prefix_tokens: int = 0,
    ) -> None:
        _check_model(model)
        if max_batch_size < 1 or prefill_tokens < 1 or prefix_tokens < 0:
            raise PolicyError(
                f"max_batch_size is {max_batch_size}, prefill_tokens is {prefill_tokens} and prefix_tokens is "
                f"{prefix_tokens}; expected at least 1, 1 and 0"
            )
        self._prefixes = PrefixStore(prefix_tokens)
        self._policy_version = 0
        self._model = model
        self._linears = PackedLinears(model)
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
        """Age of the weights. Setting it says that they have changed; sequences in flight keep what they cached."""
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._policy_version = version
        self._prefixes.clear()
        self._linears.clear()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], policy_version: int) -> None:
        """See `TrainableEngine`. Tensors that are the model's own, as where it is shared, stay as they are."""
        self._copy(weights)  # what was sent is gone before contexts are computed anew, which takes memory too
        self.policy_version = policy_version
        self._recompute()

    def _copy(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        own = dict(self._model.named_parameters())
        tied = dict(self._model.named_parameters(remove_duplicate=False)).keys() - own.keys()
        given = {name: tensor for name, tensor in weights if name not in tied}
        check_weights(*({name: tensor.shape for name, tensor in side.items()} for side in (given, own)))
        with torch.no_grad():
            for name, tensor in given.items():
                if tensor.data_ptr() != own[name].data_ptr():
                    own[name].copy_(tensor)

    @property
    def pending(self) -> int:
        return self._num_live + len(self._waiting)

    @property
    def _num_live(self) -> int:
        return sum(map(len, self._rows))

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue requests, all or none. Raises `PolicyError` for one that could never be served."""
        pending = {request.key for request in self._waiting} | {each.request.key for row in self._rows for each in row}
        check_requests(requests, pending, max_positions=self._max_positions, vocab_size=self._vocab_size)
        self._waiting.extend(requests)

    def poll(self) -> list[Completion]:
        """Decode until at least one sequence finishes; return all that finish at that step, `[]` if none is pending."""
        with self._inference():
            while self.pending:
                self._admit()
                if finished := self._step():
                    return finished
        return []

    def cancel(self, keys: Iterable[str]) -> None:
        """Forget these requests; keys that are not pending are ignored."""
        gone = frozenset(keys)
        self._waiting = deque(request for request in self._waiting if request.key not in gone)
        self._rows = [[each for each in row if each.request.key not in gone] for row in self._rows]
        with torch.inference_mode():
            self._release([slot for slot, row in enumerate(self._rows) if not row])

    @contextmanager
    def _inference(self) -> Iterator[None]:
        with _evaluating(self._model), grouped(self._model), self._linears.use(), torch.inference_mode():
            yield

    def _recompute(self) -> None:
        """Fill the cache of live rows anew."""
        width = max((row[0].position for row in self._rows), default=0)
        rows_at_once = max(1, self._prefill_tokens // max(1, width))
        with self._inference():
            for first in range(0, len(self._rows), rows_at_once):
                rows = self._rows[first : first + rows_at_once]
                self._fill(first, [row[0].ids[:-1] for row in rows], [0] * len(rows))

    def _admit(self) -> None:
        """Move waiting requests into free slots, unless so few would join that it is better to wait a little."""
        room = min(len(self._waiting), self._max_batch_size - self._num_live)
        worthwhile = 8 * room >= self._num_live or self._steps_since_admission >= PATIENCE_STEPS
        if not room or not worthwhile:
            return
        self._steps_since_admission = 0
        joined: dict[tuple[tuple[int, ...], float], _Row] = {}
        for request in (self._waiting.popleft() for _ in range(room)):
            uniforms = uniform_stream(request.seed, request.max_new_tokens)
            row = joined.setdefault((request.context_ids, request.temperature), [])
            row.append(_Sequence(request, uniforms, self.policy_version))
        rows = {row[0].request.key: row for row in joined.values()}
        requests: Sequence[TokenRequest] = [row[0].request for row in joined.values()]
        while requests:
            wave = next_wave(requests, self._prefixes)
            for batch in wave.batches(self._prefill_tokens):
                self._prefill(batch, wave.starts)
                self._rows += [rows[request.key] for request in batch]
            for slot, row in enumerate(self._rows):
                if row[0].request.key in wave.shared:
                    self._keep(slot, row[0].request.context_ids[:-1])
            requests = wave.later

    def _keep(self, slot: int, ids: tuple[int, ...]) -> None:
        if self._prefixes.wants(ids):
            self._prefixes.put(ids, self._cache.save(slot, len(ids)))

    def _prefill(self, requests: Sequence[TokenRequest], starts: Mapping[str, Start]) -> None:
        """Compute the cache of new slots, behind those of the live rows, but for what the store has."""
        first = len(self._rows)
        lengths = [starts[request.key][0] for request in requests]
        for slot, request in enumerate(requests, first):
            length, saved = starts[request.key]
            if saved is not None:
                self._cache.load(slot, saved, length)
        self._fill(first, [request.context_ids[:-1] for request in requests], lengths)

    def _fill(self, first: int, contexts: Sequence[tuple[int, ...]], starts: Sequence[int]) -> None:
        """Compute the cache of slots `first, first + 1, ...` for these ids, of which `starts` positions are there."""
        rest = [ids[start:] for ids, start in zip(contexts, starts, strict=True)]
        if width := max(map(len, rest)):
            device = self._model.device
            # Padding is on the right: it is written behind the context, where decoding overwrites it before looking.
            padded = [(*ids, *([0] * (width - len(ids)))) for ids in rest]
            positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
            self._forward(first, torch.tensor(padded, device=device), positions, max(starts) + width)

    def _step(self) -> list[Completion]:
        """Compute one position of every live row and draw a token for every sequence; return those that ended."""
        rows, device = self._rows, self._model.device
        positions = [row[0].position for row in rows]
        logits = self._forward(
            0,
            torch.tensor([[row[0].input_id] for row in rows], device=device),
            torch.tensor(positions, device=device)[:, None],
            max(positions) + 1,
        )
        ids, logprobs = draw(
            logits,
            torch.tensor([row[0].request.temperature for row in rows], dtype=torch.float64, device=device),
            torch.tensor([slot for slot, row in enumerate(rows) for _ in row], device=device),
            torch.tensor([each.uniform for row in rows for each in row], dtype=torch.float64, device=device),
        )
        if bool(logprobs.isnan().any()):
            raise PolicyError(
                f"the model gave NaN logits at policy_version {self.policy_version}; its weights or its inputs "
                "have diverged: look at the last updates' gradient norms, and restart from a checkpoint"
            )
        self._steps_since_admission += 1
        return self._record(iter(zip(ids.tolist(), logprobs.tolist(), strict=True)))

    def _record(self, drawn: Iterator[tuple[int, float]]) -> list[Completion]:
        """Note what was drawn, row by row: part rows whose sequences now differ, free those that are over."""
        finished: list[Completion] = []
        for slot, row in enumerate(self._rows[:]):
            live: dict[int, _Row] = {}
            num_finished = len(finished)
            for each in row:
                token, logprob = next(drawn)
                each.token_ids.append(token)
                each.logprobs.append(logprob)
                if token in self._stop_ids:
                    finished.append(each.completion(FinishReason.STOP))
                elif len(each.token_ids) == each.request.max_new_tokens:
                    finished.append(each.completion(FinishReason.LENGTH))
                else:
                    live.setdefault(token, []).append(each)
            if len(finished) > num_finished and row[0].policy_version == self.policy_version:
                self._keep(slot, row[0].ids[:-1])
            self._rows[slot], *others = live.values() or [[]]
            for other in others:
                self._cache.copy(slot, len(self._rows), other[0].position)
                self._rows.append(other)
        self._release([slot for slot, row in enumerate(self._rows) if not row])
        return finished

    def _release(self, slots: Sequence[int]) -> None:
        """Free these slots and close the gaps with the last rows."""
        for slot in sorted(slots, reverse=True):
            last = self._rows.pop()
            if slot < len(self._rows):
                self._rows[slot] = last
                self._cache.copy(len(self._rows), slot, last[0].position)

    def _forward(self, first: int, ids: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Feed `ids` [rows, tokens] at `positions`, looking back over `length`; return last logits [rows, vocab]."""
        self._cache.aim(first, positions, length)
        visible = torch.arange(length, device=ids.device) <= positions[:, :, None]
        dtype = self._model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=ids.device)
        mask.masked_fill_(~visible, torch.finfo(dtype).min)
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask[:, None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits
        return logits[:, -1]


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout and gradient checkpointing off, and back on if the learner had them on."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _check_model(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    sliding = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    if other := set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        raise PolicyError(
            f"{type(model).__name__} has layers of {', '.join(sorted(other))}; this engine needs full attention in "
            "every layer: use another model or another engine"
        )
    if sliding or rope in ("dynamic", "longrope"):
        raise PolicyError(
            f"{type(model).__name__} has sliding_window = {getattr(config, 'sliding_window', None)} and rope_type = "
            f"{rope!r}; this engine batches rows of different lengths and needs full attention and a RoPE that depends "
            "on positions alone: use a model with those, or another engine"
        )
