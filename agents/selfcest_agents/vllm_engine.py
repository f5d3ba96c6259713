"""An engine over vLLM, with its continuous batching and prefix cache, whose weights can be replaced.

By default vLLM runs in this process, and receives weights without a file. With `VllmOptions.in_process = False` it has
its own process, which receives weights through a file in shared memory.

Every request has its own random stream, so the order and the batch of requests do not change it. However, matrix
products in bfloat16 are rounded differently for different batch shapes. A token may differ if the draw is very close
to a boundary between two tokens.

vLLM is imported when an engine is started, not when this module is imported.
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

from selfcest_agents.engine import Completion, FailedRequest, TokenRequest, check_requests
from selfcest_agents.vllm_worker import WeightReceiver
from selfcest_env.errors import ConfigError, InfrastructureError, PolicyError, install_hint
from selfcest_env.structure import Checked, Count, OneOf, Positive
from selfcest_env.types import FinishReason

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "bfloat16", "float16")
_GIB = 2**30
_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(frozen=True)
class VllmOptions(Checked):
    """Options of vLLM. `None` is vLLM's default, except where an option says otherwise.

    Attributes:
        dtype: dtype of weights and activations. float32 samples from the exact distribution of a float32 learner.
        max_positions: maximum number of ids of a context, including the generated ones; `None` for the model's maximum.
        max_batch_size: maximum number of sequences that are decoded together.
        kv_cache_gib: memory for keys and values in GiB, which also bounds the sequences that are decoded together.
        block_size: number of ids in a block of the cache. Only complete blocks are shared. On CPUs vLLM's default is
            128, so shorter prompts share nothing.
        eager: whether to run without compilation and CUDA graphs; `None` for eager on CPUs only, where compilation
            costs more time than it saves.
        in_process: whether to run in this process.
        tensor_parallel: number of GPUs that share every layer. Each has its own process.
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
    def shares_process(self) -> bool:
        """Whether the worker runs in this process, so that it receives weights without a file."""
        return self.in_process and self.tensor_parallel == 1


class VllmEngine:
    """An `Engine` over vLLM and a Hugging Face model folder.

    Args:
        model: folder with config and safetensors. Its tokenizer is not used.
        stop_ids: ids that end a sequence, and are part of the completion. The model's own end-of-sequence ids have no
            effect unless they are among these.
        options: options of vLLM.

    Raises:
        ConfigError: vLLM cannot be imported, there is no such model, vLLM does not support an option for it, or threads
            would spin (see docs/models.md).
    """

    _in_process: ClassVar[WeakSet[VllmEngine]] = WeakSet()  # engines that run in this process, at most one

    def __init__(self, model: str | Path, *, stop_ids: Collection[int], options: VllmOptions = VllmOptions()) -> None:
        self._options = options
        self._stop_ids = sorted(set(stop_ids))
        self._pending: dict[str, TokenRequest] = {}
        if options.in_process and self._in_process:
            raise ConfigError(
                "a VllmEngine already runs in this process, and the end of one would end what both share; close it, or "
                "set in_process: false for all but one"
            )
        self._engine = _start(model, options)
        if options.in_process:
            self._in_process.add(self)
        self._engine.collective_rpc("note_selfcest_checkpoint")
        self._max_positions = int(self._engine.model_config.max_model_len)
        self._vocab_size = int(self._engine.model_config.get_vocab_size())
        self.policy_version = 0

    @property
    def policy_version(self) -> int:
        """Version of the weights. vLLM stores it with every token that it samples."""
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._policy_version = version
        self._engine.set_weight_version(str(version))

    @property
    def pending(self) -> int:
        return len(self._pending)

    def submit(self, requests: Sequence[TokenRequest]) -> None:
        """Queue all requests, or none and raise `PolicyError` if one of them could never be served."""
        check_requests(requests, self._pending, max_positions=self._max_positions, vocab_size=self._vocab_size)
        from vllm.inputs import tokens_input

        for request in requests:
            prompt = tokens_input(list(request.context_ids))
            self._engine.add_request(request.key, prompt, self._make_sampling_params(request))
            self._pending[request.key] = request

    def poll(self) -> list[Completion | FailedRequest]:
        """Decode until a sequence finishes; return all that finish at that step, `[]` if none is pending."""
        while self._pending:
            if not self._engine.has_unfinished_requests():
                raise InfrastructureError(
                    f"vLLM lost {len(self._pending)} requests, the first is {next(iter(self._pending))!r}"
                )
            finished: list[Completion | FailedRequest] = []
            for output in self._engine.step():
                if output.finished and output.request_id in self._pending:
                    finished.append(self._read_completion(output))
            if finished:
                return finished
        return []

    def cancel(self, keys: Iterable[str]) -> None:
        """Drop these requests; keys that are not pending are ignored."""
        cancelled = [key for key in dict.fromkeys(keys) if self._pending.pop(key, None)]
        self._engine.abort_request(cancelled)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """See `TrainableEngine`."""
        tensors = {name: tensor.detach() for name, tensor in weights}
        try:
            with self._passed_to_worker(tensors) as message:
                self._engine.collective_rpc("receive_selfcest_weights", args=(message,))
        except Exception as error:
            raise PolicyError(f"vLLM did not load the weights of policy_version {policy_version}: {error}") from error
        # Running requests recompute their context with the new weights.
        self._engine.reset_prefix_cache(reset_running_requests=True)
        self.policy_version = policy_version

    def close(self) -> None:
        """Drop the pending requests, end vLLM and free its memory."""
        self._pending.clear()
        self._engine.engine_core.shutdown()
        self._in_process.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _make_sampling_params(self, request: TokenRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=request.temperature,
            seed=request.seed,
            max_tokens=request.max_new_tokens,
            stop_token_ids=self._stop_ids,
            ignore_eos=True,  # the end-of-sequence ids of the folder's generation_config do not end a turn
            logprobs=0,  # log-probs of the sampled id, and of no other
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _read_completion(self, output: Any) -> Completion | FailedRequest:
        request = self._pending.pop(output.request_id)
        (sequence,) = output.outputs
        if sequence.finish_reason not in _FINISH_REASONS:
            cause = f"vLLM ended {request.key!r} by {sequence.finish_reason!r}; expected stop or length"
            return FailedRequest(request.key, InfrastructureError(cause))
        ids = tuple(sequence.token_ids)
        version = int(sequence.weight_versions[0].version)
        logprobs = tuple(float(entry[token].logprob) for entry, token in zip(sequence.logprobs, ids, strict=True))
        if not all(map(isfinite, logprobs)):
            raise PolicyError(
                f"the model gave log-probs that are not finite at policy_version {version}, so its weights or inputs "
                "have diverged; check the gradient norms of the last updates, and restart from a checkpoint"
            )
        if request.temperature == 0:
            logprobs = (0.0,) * len(ids)
        return Completion(request.key, ids, logprobs, _FINISH_REASONS[sequence.finish_reason], version)

    @contextmanager
    def _passed_to_worker(self, tensors: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor] | str]:
        """Yield the tensors for a worker in this process, or the path of a temporary file for another process."""
        if self._options.shares_process:
            yield tensors
            return
        from safetensors.torch import save_file

        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryDirectory(prefix="selfcest-weights-", dir=memory) as folder:
            path = os.path.join(folder, "weights.safetensors")
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
            yield path


def _start(model: str | Path, options: VllmOptions) -> Any:
    """Start vLLM's own engine."""
    try:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor
    except ImportError as error:
        raise ConfigError(
            f"vLLM cannot be imported ({error}); use TransformersEngine, install it for a CPU as docs/models.md says, "
            f"or run: {install_hint('vllm')}"
        ) from error
    on_cpu = current_platform.is_cpu()
    _check_threads(on_cpu and options.in_process)
    cache: dict[str, Any] = {}
    if options.kv_cache_gib is not None:
        # gpu_memory_utilization is the fraction of a GPU's memory that must be free at the start. A learner may already
        # use most of it.
        cache = {"kv_cache_memory_bytes": int(options.kv_cache_gib * _GIB), "gpu_memory_utilization": 0.001}
    if options.tensor_parallel > 1:
        # The processes must be on this machine. Inside a Ray actor vLLM would start them with Ray by default.
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
        # After each chunk of a prompt vLLM rewinds the request's random generator, which is not possible on CPUs.
        enable_chunked_prefill=not on_cpu,
        logprobs_mode="processed_logprobs",  # those of the sampled distribution, at its temperature
        worker_extension_cls=f"{WeightReceiver.__module__}.{WeightReceiver.__qualname__}",
        disable_log_stats=True,
        **cache,
    )
    try:
        with _restored_process_state(options.in_process):
            config = arguments.create_engine_config()
            return LLMEngine(
                config, Executor.get_class(config), log_stats=False, multiprocess_mode=not options.in_process
            )
    except (ValueError, OSError) as error:
        raise ConfigError(f"vLLM cannot run the model {str(model)!r} with {options}: {error}") from error


def _check_threads(shared: bool) -> None:
    """Raise `ConfigError` if vLLM would use spinning threads on CPUs that it shares with this process.

    Threads that spin while they wait make vLLM ten times slower as soon as they share a core with another thread.
    """
    import torch

    passive = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    if shared and torch.get_num_threads() > 1 and not passive:
        raise ConfigError(
            f"vLLM would run in this process with {torch.get_num_threads()} threads and OMP_WAIT_POLICY "
            f"{os.environ.get('OMP_WAIT_POLICY')!r}; set OMP_WAIT_POLICY=passive before Python starts, or "
            "OMP_NUM_THREADS=1, or in_process: false"
        )


@contextmanager
def _restored_process_state(in_process: bool) -> Iterator[None]:
    """Restore the process after the start of vLLM, which seeds all random state and disables torch.set_num_threads."""
    import numpy as np
    import torch

    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not in_process)), "OMP_WAIT_POLICY": "passive"}
    before = {name: os.environ.get(name) for name in variables}
    set_num_threads = torch.set_num_threads
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    os.environ.update(variables)
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
        random.setstate(python_state)
        np.random.set_state(numpy_state)
