"""A CUDA device that is not there: its tensors claim to be on `cuda:0`, and the CPU computes their values.

PyTorch's own `FakeTensorMode` has shapes and no values, so it stops at the first number that decides something: a
sampled id, a gradient norm. On a build without CUDA it also aborts in the first backward pass. Here every value is
real, so a whole training job can run, and an operation that mixes the host with the device fails as it fails on a GPU.

Python sees the device `cuda:0`; PyTorch's C++ code sees the meta device, because a build without CUDA has no guard that
autograd could take for a CUDA tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0)

aten = torch.ops.aten
# Copies between devices.
COPIES = {aten.copy_, aten._to_copy, aten.to}
# A tensor on a GPU can be indexed with integers that the host holds.
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
# Functions of decoders in the two lists of PyTorch's "CUDA op-specific behavior" of autocast. The dispatch key that
# casts in C++ is not set for tensors on the meta device.
AUTOCAST_TO_HALF = {
    "__matmul__",
    "addmm",
    "baddbmm",
    "bmm",
    "einsum",
    "linear",
    "matmul",
    "mm",
    "scaled_dot_product_attention",
}
AUTOCAST_TO_FLOAT32 = {
    "cross_entropy",
    "cumsum",
    "exp",
    "log",
    "log_softmax",
    "logsumexp",
    "norm",
    "pow",
    "rsqrt",
    "softmax",
    "sum",
}


class FakeCudaTensor(Tensor):
    """A tensor that claims to be on `cuda:0`.

    Attributes:
        host_values: the tensor on the CPU that holds its values. Views share the memory of their base.
    """

    host_values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> FakeCudaTensor:
        tensor: FakeCudaTensor = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device("meta"),
            requires_grad=values.requires_grad,
        )
        tensor.host_values = values
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(operator, args, kwargs or {})

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter  # type: ignore[override]
    def data(self, source: FakeCudaTensor) -> None:
        Tensor.data.__set__(self, source)  # type: ignore[attr-defined]
        self.host_values = source.host_values

    def get_device(self) -> int:
        return 0

    def cpu(self, *args: Any, **options: Any) -> Tensor:
        return self.to(CPU)

    def tolist(self) -> Any:
        return self.host_values.tolist()

    def numpy(self, *args: Any, **options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy; copy it to the host with Tensor.cpu() first")

    __array__ = numpy

    def data_ptr(self) -> int:
        return self.host_values.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.host_values.untyped_storage()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = FakeCudaTensor(self.host_values.detach().clone()).requires_grad_(self.requires_grad)
        # A parameter is marked by an attribute.
        for name, value in self.__dict__.items():
            if name != "host_values":
                setattr(copied, name, value)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.host_values.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.host_values!r} on a fake {DEVICE}"


def _run(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operator on the CPU; its results are on the device that a GPU would leave them on.

    Raises:
        RuntimeError: the arguments are on both devices. As on a GPU, a number of the host (a tensor without dimensions)
            may meet tensors of the device.
    """
    checked = args
    if operator.overloadpacket in INDEXING:
        checked = (args[0], [index for index in args[1] if isinstance(index, FakeCudaTensor)], *args[2:])
    tensors = [leaf for leaf in tree_leaves((checked, kwargs)) if isinstance(leaf, Tensor)]
    on_device = [isinstance(tensor, FakeCudaTensor) for tensor in tensors]
    if operator.overloadpacket not in COPIES and any(on_device):
        for tensor, is_fake in zip(tensors, on_device, strict=True):
            if not is_fake and tensor.dim() > 0:
                shape = tuple(tensor.shape)
                raise RuntimeError(
                    f"expected all tensors on one device: {operator} got one of shape {shape} on cpu and another on "
                    f"{DEVICE}"
                )
    # A copy goes to where its last tensor is, if it names no device.
    to_device = any(on_device[-1:] if operator.overloadpacket in COPIES else on_device)
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.device):
            # Autograd names the meta device when it makes zeros for a gradient.
            to_device = leaf.type in ("cuda", "meta")
    args, kwargs = tree_map(_to_host, (args, kwargs))
    if kwargs.get("pin_memory"):
        # Pinned memory needs a real device.
        kwargs["pin_memory"] = False
    results = operator(*args, **kwargs)
    # An operator that works in place returns its argument, which must stay the same object.
    known = {}
    if operator._schema.is_mutable:
        known = {id(_to_host(tensor)): tensor for tensor in tensors}

    def wrap(result: Any) -> Any:
        if not isinstance(result, Tensor):
            return result
        if id(result) in known:
            return known[id(result)]
        return FakeCudaTensor(result) if to_device else result

    return tree_map(wrap, results)


def _to_host(value: Any) -> Any:
    if isinstance(value, FakeCudaTensor):
        return value.host_values
    return CPU if isinstance(value, torch.device) else value


class _OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators that name the device and have no argument on it, as `torch.zeros(3, device="cuda")`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A mode with this key keeps PyTorch from initialising CUDA when a call names a CUDA device.
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(operator, args, kwargs or {})


class _FunctionMode(TorchFunctionMode):
    """Mends calls that PyTorch's C++ code would refuse before any operator runs, and does the work of autocast."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A device without an index asks a driver for the current one.
        args = tuple(map(_with_index, args))
        kwargs = {name: _with_index(value) for name, value in (kwargs or {}).items()}
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            del kwargs["device"]
            return function(*args, **kwargs).to(DEVICE)
        if function is Tensor.cuda:
            return args[0].to(DEVICE)
        if torch.is_autocast_enabled("cuda"):
            dtype = _autocast_dtype(getattr(function, "__name__", ""))
            if dtype is not None:
                args, kwargs = tree_map(lambda value: _cast(value, dtype), (args, kwargs))
        return function(*args, **kwargs)


def _with_index(value: Any) -> Any:
    is_unindexed = isinstance(value, (str, torch.device)) and str(value) == "cuda"
    return DEVICE if is_unindexed else value


def _autocast_dtype(name: str) -> torch.dtype | None:
    if name in AUTOCAST_TO_HALF:
        return torch.get_autocast_dtype("cuda")
    return torch.float32 if name in AUTOCAST_TO_FLOAT32 else None


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, FakeCudaTensor) and value.is_floating_point() and value.dtype != dtype:
        return value.to(dtype)
    return value


@contextmanager
def _modes() -> Iterator[None]:
    with _FunctionMode(), _OperatorMode():
        yield


def _in_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _modes():
            return function(*args, **kwargs)

    return call


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Let this process have one CUDA device, `cuda:0`, for the time of the context.

    `torch.cuda.is_available()` stays False: code that asks whether kernels of CUDA exist is told the truth.
    """
    engine = "_engine_run_backward"
    with ExitStack() as stack:
        stack.enter_context(patch("torch.cuda.device_count", lambda: 1))
        stack.enter_context(patch("torch.cuda.synchronize", lambda device=None: None))
        # Else autocast for CUDA warns and switches itself off.
        stack.enter_context(patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False))
        stack.enter_context(patch("torch.cuda.is_bf16_supported", lambda including_emulation=True: True))
        # Modes belong to a thread, and backward passes run without the function mode: gradient checkpointing computes
        # the forward pass again in there.
        stack.enter_context(patch.object(threading.Thread, "run", _in_modes(threading.Thread.run)))
        stack.enter_context(patch.object(torch.autograd, engine, _with_function_mode(getattr(torch.autograd, engine))))
        stack.enter_context(_modes())
        yield


def _with_function_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _FunctionMode():
            return function(*args, **kwargs)

    return call
