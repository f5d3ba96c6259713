"""Plug-ins: a class by registered name or `package.module:Class`, built from typed options."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, Protocol, TypeGuard, TypeVar, runtime_checkable

from typing_extensions import get_protocol_members, is_protocol

from selfcest_env.errors import ConfigError, PlugInError, did_you_mean, refuse_name
from selfcest_env.local_modules import local_modules
from selfcest_env.stored import by_field, stored_as, stored_fields
from selfcest_env.structure import construct

T = TypeVar("T")


@stored_as(name="name", options="options")
@dataclass(frozen=True)
class PlugIn:
    """A plug-in as a config names it: a registered name or `package.module:Class`, and its constructor's options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


class Configured:
    """Base of a plug-in that holds more than its options. The options are frozen in `options`.

    A subclass contains a frozen dataclass `Options`, whose arguments are those of the plug-in's constructor, as in
    `Dots(decay=0.9)`. A subclass that sets up more overrides `__init__` and calls
    `super().__init__(*arguments, **options)` first.

    Raises:
        TypeError: at the definition of a subclass whose `Options` is no frozen dataclass.
    """

    Options: ClassVar[type[Any]]
    options: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.options = self.Options(*arguments, **options)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        options = vars(cls).get("Options")
        if options is not None and not is_frozen(options):
            raise TypeError(f"{cls.__qualname__}.Options is {options!r}; expected a frozen dataclass")

    def __repr__(self) -> str:
        """Return the class with its options, as `Dots(decay=0.9)`: the same text in every process."""
        values = {field.name: getattr(self.options, field.name) for field in fields(self.options)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def implements(value: object, protocol: type[T]) -> TypeGuard[T]:
    """Return whether the class of an object has all methods of a runtime-checkable protocol.

    Before Python 3.12 `isinstance` with a protocol takes several microseconds, and rewards ask it for every episode.
    """
    key = (type(value), protocol)
    if key not in _IMPLEMENTS:
        _IMPLEMENTS[key] = issubclass(type(value), protocol)
    return _IMPLEMENTS[key]


_IMPLEMENTS: dict[tuple[type, type], bool] = {}  # by class and protocol


@runtime_checkable
class HasState(Protocol):
    """An object with state that goes into checkpoints."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as nested dicts with string keys, lists, texts, numbers, booleans, None and tensors."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        ...


S = TypeVar("S", bound=HasState)


class Stateful(Configured, Generic[S]):
    """Base of a plug-in that changes while it works. Its `options` are frozen, and `state` holds all that changes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.state = self.initial_state()

    def initial_state(self) -> S:
        """Return the initial state. It may depend on `self.options`."""
        raise NotImplementedError(f"{type(self).__name__} does not override initial_state")

    def state_dict(self) -> Mapping[str, Any]:
        return self.state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state.load_state_dict(state)


class PlainState:
    """Base of a dataclass of plain values that is a state. Its `state_dict` has the fields by their stored names."""

    def state_dict(self) -> Mapping[str, Any]:
        return deepcopy(stored_fields(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self).update(deepcopy(by_field(type(self), state)))


def is_frozen(cls: type) -> bool:
    """Return whether a class itself, and not only a base class, is a frozen dataclass."""
    return "__dataclass_params__" in vars(cls) and bool(vars(cls)["__dataclass_params__"].frozen)


@dataclass(frozen=True)
class Registry(Mapping[str, str], Generic[T]):
    """The plug-ins of one kind: a mapping from their names to references `package.module:Class`.

    It contains the built-in plug-ins and the entry points of installed packages in `group`. No plug-in is imported
    before it is loaded. Wherever a name is accepted, `package.module:Class` is accepted too.

    Attributes:
        kind: protocol or base class of the plug-ins; see `check_kind`.
        what: noun for messages, for example "task source".
        group: the entry point group, for example "selfcest.task_source".
        builtins: `package.module:Class` by name.
    """

    kind: type[T]
    what: str
    group: str
    builtins: Mapping[str, str]

    def references(self) -> dict[str, str]:
        """Return all references by name. Raises `PlugInError` if two packages claim one name."""
        references = dict(self.builtins)
        for name, reference, owner in _find_entry_points(self.group, tuple(sys.path)):
            if references.setdefault(name, reference) != reference:
                raise PlugInError(
                    f"the entry point '{name}' = {reference} of {owner} in the group {self.group} clashes with "
                    f"{references[name]}; rename it there, or uninstall {owner}"
                )
        return references

    def load(self, reference: str, where: str = "") -> type[T]:
        """Return the class of a plug-in, without an instance.

        Args:
            reference: a name of this registry, or `package.module:Class`.
            where: key of the reference in a config, for messages; empty if it stands in none.

        Raises:
            ConfigError: the name is unknown.
            PlugInError: the reference names no class of this kind, or code that is not trusted (see `only_trusted`).
        """
        place = f"{where}: " if where else ""
        who = f"{place}{self.what} {reference!r}"
        cls = _import(reference, self.references(), self.what, place)
        check_kind(cls, self.kind, who)
        return cls

    def make(self, reference: str, options: Mapping[str, Any], *, where: str) -> T:
        """Return a plug-in with these options. Errors are those of `load` and `build`.

        `where` is the config key of the options: `X.options`, or `X` where the name stands among the options.
        """
        return build(self.load(reference, where.removesuffix(".options")), options, where=where)

    def __getitem__(self, name: str) -> str:
        return self.references()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.references())

    def __len__(self) -> int:
        return len(self.references())


# Reading the metadata of all packages takes 10 ms, and a name is looked up for every task source of a mixture.
@lru_cache
def _find_entry_points(group: str, path: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    """Return the name, reference and package of every entry point of a group. `path` is `sys.path`, as a cache key."""
    return tuple(
        (entry.name, f"{entry.module}:{entry.attr}", entry.dist.name if entry.dist is not None else "a package")
        for entry in entry_points(group=group)
    )


def _import(reference: str, known: Mapping[str, str], what: str, place: str) -> type:
    module_name, colon, class_name = known.get(reference, reference).partition(":")
    if not colon:
        raise ConfigError(
            refuse_name(
                f"{place}unknown {what} {reference!r}",
                reference,
                known,
                f"one of {', '.join(sorted(known))}, or 'package.module:Class'",
            )
        )
    if not module_name or not class_name:
        raise PlugInError(f"{place}{what} {reference!r}: expected 'package.module:Class' with both sides filled in")
    trusted = _trusted.get()
    if reference not in known and trusted is not None and not _is_within(module_name, trusted):
        raise PlugInError(
            f"{place}{what} {reference!r} is code that a read-only command does not run; if you trust it, add "
            f"--trust {module_name}"
        )
    local = local_modules()
    if reference not in known and local is not None:
        local.allow(module_name.partition(".")[0])
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise PlugInError(
            f"{place}{what} {reference!r}: importing {module_name!r} failed with {type(error).__name__}: {error}; "
            "check the spelling and that the package is installed"
        ) from error
    cls = getattr(module, class_name, None)
    if cls is None:
        public = [name for name in dir(module) if not name.startswith("_")]
        raise PlugInError(
            f"{place}{what} {reference!r}: {module_name!r} has no {class_name!r}.{did_you_mean(class_name, public)}"
        )
    if not isinstance(cls, type):
        raise PlugInError(f"{place}{what} {reference!r} is a {type(cls).__name__}; expected a class")
    return cls


_trusted: ContextVar[tuple[str, ...] | None] = ContextVar("trusted", default=None)  # `None`: all modules


@contextmanager
def only_trusted(modules: Iterable[str]) -> Iterator[None]:
    """Inside the block, registries load only built-in plug-ins, installed entry points and classes of these modules.

    Commands that read files of other people need it, because a config can name any class, and an import runs code.
    """
    token = _trusted.set(tuple(modules))
    try:
        yield
    finally:
        _trusted.reset(token)


def check_modules(modules: list[str] | None) -> list[str] | None:
    """Return the modules of `--trust`. Raises `PlugInError` for a module that cannot be found. Nothing is imported."""
    for module in modules or []:
        if not _is_module(module):
            raise PlugInError(
                f"--trust {module}: no such module; expected an import name, as in --trust package.module"
            )
    return modules


def is_read_only() -> bool:
    """Return whether the current command is read-only: it runs no code that a config names and uses no network."""
    return _trusted.get() is not None


def _is_module(name: str) -> bool:
    """Return whether a module can be found, also in the folder that is searched for plug-ins. Nothing is imported."""
    if name in sys.modules:
        return True
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    local = local_modules()
    try:
        spec = importlib.util.find_spec(parts[0]) or (local.look_up(parts[0]) if local else None)
    except ValueError:  # a module in `sys.modules` without a spec
        return False
    for i in range(1, len(parts)):
        # Not `find_spec` of the whole name, which imports the package around it.
        locations = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(".".join(parts[: i + 1]), locations) if locations is not None else None
    return spec is not None


def _is_within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def check_kind(cls: type, kind: type, who: str) -> None:
    """Raise `PlugInError` unless a class can be a plug-in of a kind. No instance is made.

    If the kind is a base class, the class must derive from it. If it is a protocol, the class must declare every member
    of it: methods, class variables with a value of their type, and attributes with a value, property or annotation.
    """
    if not is_protocol(kind):
        if not issubclass(cls, kind):
            raise PlugInError(
                f"{who}: {cls.__name__} is no subclass of {kind.__module__}:{kind.__name__}; derive it from that class"
            )
        return
    hints = typing.get_type_hints(kind)
    missing: list[str] = []
    # Without the protocol itself: members that are inherited from it do nothing.
    bases = [base for base in cls.__mro__ if base is not kind]
    for name in sorted(get_protocol_members(kind)):
        # Not `getattr`, which finds a `__call__` in every class.
        members = [vars(base)[name] for base in bases if name in vars(base)]
        if callable(getattr(kind, name, None)):
            if not members or not callable(getattr(cls, name)):
                missing.append(f"{name}()")
        elif typing.get_origin(hints.get(name)) is typing.ClassVar:
            (type_,) = typing.get_args(hints[name])
            if not members or not isinstance(members[0], type_):
                missing.append(f"{name}: {type_.__name__}")
        elif not members and not any(name in inspect.get_annotations(base) for base in bases):
            missing.append(name)
    if missing:
        raise PlugInError(
            f"{who}: {cls.__name__} lacks {', '.join(missing)}; declare it on the class, as "
            f"{kind.__module__}:{kind.__name__} does"
        )


def check_state_apart(cls: type, who: str, remembers: bool) -> None:
    """Raise `PlugInError` for a frozen dataclass with state, which it could not change."""
    if remembers and is_frozen(cls):
        raise PlugInError(
            f"{who}: {cls.__name__} is a frozen dataclass and has state_dict; expected a state "
            "apart from frozen options: derive it from selfcest_env.plugin:Stateful, or write an ordinary class"
        )


def build(cls: type[T], options: Mapping[str, Any], *, where: str) -> T:
    """Return `cls(**options)`, each option checked against its annotation (`structure.construct`).

    Raises:
        ConfigError: an option is unknown, missing or wrongly typed, or the class refuses it. The message begins with
            `where`, the config key of the options as in `Registry.make`.
    """
    return construct(cls, options, place=where)


def check_choice(argument: str, value: Any, known: tuple[Any, ...]) -> Any:
    """Return the value if it is a known choice. Raises `ConfigError` that names the argument."""
    if value not in known:
        names = [str(name) for name in known]
        raise ConfigError(refuse_name(f"{argument} is {value!r}", str(value), names, f"one of {', '.join(names)}"))
    return value
