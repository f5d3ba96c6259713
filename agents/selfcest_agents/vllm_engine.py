"""An engine over vLLM: continuous batching through its own add-request and step calls, prefixes shared, weights pushed.

By default vLLM runs in this process, where a push of weights copies nothing through a file. `VllmOptions.in_process =
False` gives it a process of its own, which leaves this one free and hands weights over in shared memory.

A row's random stream is its own, so neither order nor neighbours change it; in bfloat16 matrix products of different
shape round differently, and a token may differ where a draw falls that close to a boundary.

vLLM is imported when an engine is started, never by importing this module.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self
from weakref import WeakSet

from selfcest_agents.engine import Completion, TokenRequest, check_requests
from selfcest_agents.vllm_worker import WeightReceiver
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError, install_hint
from selfcest_env.structure import Checked, Count, OneOf, Positive
from selfcest_env.types import FinishReason

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "bfloat16", "float16")
_GIB = 2**30
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(frozen=True)
class VllmOptions(Checked):
    """How vLLM is run. What is `None` is left to vLLM.

    Attributes:
        dtype: of weights and activations. float32 samples from exactly the distribution that a float32 learner has.
        max_positions: ids of one context at most, prompt and generation together; `None`: what the model can hold.
        max_batch_size: sequences decoded together at most.
        kv_cache_gib: memory for keys and values; it bounds what is decoded together.
        block_size: ids per block of the cache. Whole blocks alone are shared: on CPUs vLLM's own 128 shares nothing of
            a shorter prompt.
        eager: run without compilation and CUDA graphs. `None`: eager on CPUs, where compiling costs more than it wins.
        in_process: run in this process.
        tensor_parallel: GPUs that share every layer, each in a process of its own.
    """

    dtype: Annotated[str, OneOf(*DTYPES)] = "float32"
    max_positions: Count | None = None
    max_batch_size: Count = 256
    kv_cache_gib: Positive | None = 1.0
    block_size: Count | None = None
    eager: bool | None = None
    in_process: bool = True
    tensor_parallel: Count = 1

    @property
    def weights_stay(self) -> bool:
        """Whether its worker is this process, so that weights reach it without a file."""
        return self.in_process and self.tensor_parallel == 1


class VllmEngine:
    """`Engine` over a Hugging Face model folder served by vLLM.

    Args:
        model: the folder, with config and safetensors; its tokenizer is not used.
        stop_ids: ids that end a sequence; a sampled stop id is part of the completion. The model's own end-of-sequence
            ids end nothing unless they are among these.
        options: how vLLM is run.

    Raises:
        ConfigError: vLLM cannot be imported; no such model; an option vLLM does not take for it; threads that would
            spin (see docs/engines.md).
    """

    _inside: ClassVar[WeakSet[VllmEngine]] = WeakSet()  # the one that runs in this process, if any

    def __init__(self, model: str | Path, *, stop_ids: Collection[int], options: VllmOptions = VllmOptions()) -> None:
        self._options = options
        self._stop_ids = sorted(set(stop_ids))
        self._pending: dict[str, TokenRequest] = {}
        if options.in_process and self._inside:
            raise ConfigError(
                "a VllmEngine already runs in this process, and vLLM takes what both would share down with the first "
                "that ends; close it, or set in_process: false for all but one"
            )
        self._engine = _start(model, options)
        if options.in_process:
            self._inside.add(self)
        self._engine.collective_rpc("note_selfcest_checkpoint")
        self._max_positions = int(self._engine.model_config.max_model_len)
        self._vocab_size = int(self._engine.model_config.get_vocab_size())
        self.policy_version = 0

    @property
    def policy_version(self) -> int:
        """Age of the weights. vLLM itself writes it beside every token it samples."""
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._policy_version = version
        self._engine.set_weight_version(str(version))

    @property
    def pending(self) -> int:
        return len(self._pending)

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue requests, all or none. Raises `PolicyError` for one that could never be served."""
        check_requests(requests, self._pending, max_positions=self._max_positions, vocab_size=self._vocab_size)
        from vllm.inputs import tokens_input

        for request in requests:
            self._engine.add_request(request.key, tokens_input(list(request.context_ids)), self._sampling(request))
            self._pending[request.key] = request

    def poll(self) -> list[Completion]:
        """Decode until at least one sequence finishes; return all that finish at that step, `[]` if none is pending."""
        while self._pending:
            if not self._engine.has_unfinished_requests():
                raise InfrastructureError(f"vLLM lost {len(self._pending)} requests, as {next(iter(self._pending))!r}")
            outputs = [output for output in self._engine.step() if output.finished]
            if finished := [self._completion(output) for output in outputs if output.request_id in self._pending]:
                return finished
        return []

    def cancel(self, keys: Iterable[str]) -> None:
        """Forget these requests; keys that are not pending are ignored."""
        gone = [key for key in dict.fromkeys(keys) if self._pending.pop(key, None)]
        self._engine.abort_request(gone)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """See `TrainableEngine`."""
        tensors = {name: tensor.detach() for name, tensor in weights}
        try:
            with self._handed_over(tensors) as message:
                self._engine.collective_rpc("receive_selfcest_weights", args=(message,))
        except Exception as error:
            raise PolicyError(f"weights of policy_version {policy_version} were not taken: {error}") from error
        self._engine.reset_prefix_cache(reset_running_requests=True)
        self.policy_version = policy_version

    def close(self) -> None:
        """End vLLM and free its memory; what is pending is dropped."""
        self._pending.clear()
        self._engine.engine_core.shutdown()
        self._inside.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _sampling(self, request: TokenRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=request.temperature,
            seed=request.seed,
            max_tokens=request.max_new_tokens,
            stop_token_ids=self._stop_ids,
            ignore_eos=True,  # whatever the folder's generation_config calls so
            logprobs=0,  # of the sampled id alone
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completion(self, output: Any) -> Completion:
        request, (made,) = self._pending.pop(output.request_id), output.outputs
        if made.finish_reason not in _FINISH:
            raise InfrastructureError(f"vLLM ended {request.key!r} by {made.finish_reason!r}; expected stop or length")
        ids, version = tuple(made.token_ids), int(made.weight_versions[0].version)
        logprobs = tuple(float(entry[token].logprob) for entry, token in zip(made.logprobs, ids, strict=True))
        if not all(map(isfinite, logprobs)):
            raise PolicyError(
                f"the model gave log-probs that are not finite at policy_version {version}; its weights or its inputs "
                "have diverged: look at the last updates' gradient norms, and restart from a checkpoint"
            )
        if request.temperature == 0:
            logprobs = (0.0,) * len(ids)
        return Completion(request.key, ids, logprobs, _FINISH[made.finish_reason], version)

    @contextmanager
    def _handed_over(self, tensors: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor] | str]:
        """The tensors themselves for a worker in this process, else the path of a file that lives as long as this."""
        if self._options.weights_stay:
            yield tensors
            return
        from safetensors.torch import save_file

        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryDirectory(prefix="selfcest-weights-", dir=memory) as folder:
            path = os.path.join(folder, "weights.safetensors")
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
            yield path


def _start(model: str | Path, options: VllmOptions) -> Any:
    """vLLM's own engine, started as `options` say."""
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor
    except ImportError as error:
        raise ConfigError(
            f"vLLM cannot be imported ({error}); use TransformersEngine, install it for a CPU as docs/engines.md says, "
            f"or run: {install_hint('vllm')}"
        ) from error
    on_cpu = current_platform.is_cpu()
    _check_threads(on_cpu and options.in_process)
    cache: dict[str, Any] = {}
    if options.kv_cache_gib is not None:
        # The share of a GPU's memory that must be free at the start; there may be a learner on it already.
        cache = {"kv_cache_memory_bytes": int(options.kv_cache_gib * _GIB), "gpu_memory_utilization": 0.001}
    if options.tensor_parallel > 1:  # processes of this machine, also inside a Ray actor, where vLLM would ask Ray
        cache |= {"tensor_parallel_size": options.tensor_parallel, "distributed_executor_backend": "mp"}
    arguments = EngineArgs(
        model=str(model),
        dtype=options.dtype,
        skip_tokenizer_init=True,
        max_model_len=options.max_positions,
        max_num_seqs=options.max_batch_size,
        block_size=options.block_size,
        enforce_eager=on_cpu if options.eager is None else options.eager,
        enable_prefix_caching=True,
        # After a piece of a prompt vLLM rewinds the request's generator, and the generators of CPUs cannot be rewound.
        enable_chunked_prefill=not on_cpu,
        logprobs_mode="processed_logprobs",  # of the distribution sampled from, temperature included
        worker_extension_cls=f"{WeightReceiver.__module__}.{WeightReceiver.__qualname__}",
        disable_log_stats=True,
        **cache,
    )
    try:
        with _untouched_process(options.in_process):
            config = arguments.create_engine_config()
            return LLMEngine(
                config, Executor.get_class(config), log_stats=False, multiprocess_mode=not options.in_process
            )
    except (ValueError, OSError) as error:
        raise ConfigError(f"vLLM cannot run the model {str(model)!r} with {options}: {error}") from error


def _check_threads(shared: bool) -> None:
    """On a CPU, threads that spin while they wait for each other cost a factor of ten as soon as a core is shared."""
    import torch

    passive = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    if shared and torch.get_num_threads() > 1 and not passive:
        raise ConfigError(
            f"vLLM would run in this process with {torch.get_num_threads()} threads and OMP_WAIT_POLICY "
            f"{os.environ.get('OMP_WAIT_POLICY')!r}; set OMP_WAIT_POLICY=passive before Python starts, or "
            "OMP_NUM_THREADS=1, or in_process: false"
        )


@contextmanager
def _untouched_process(in_process: bool) -> Iterator[None]:
    """Undo what starting vLLM does to its process: it seeds all random state and disables torch.set_num_threads."""
    import numpy as np
    import torch

    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not in_process)), "OMP_WAIT_POLICY": "passive"}
    before = {name: os.environ.get(name) for name in wanted}
    set_num_threads, states = torch.set_num_threads, (random.getstate(), np.random.get_state())
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    os.environ.update(wanted)
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        torch.set_num_threads = set_num_threads
        random.setstate(states[0])
        np.random.set_state(states[1])
