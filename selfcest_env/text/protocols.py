"""The one table of protocols, for the PettingZoo face and for every language model."""

from __future__ import annotations

from selfcest_env.errors import PlugInError
from selfcest_env.plugin import build, load
from selfcest_env.protocol import ProtocolText

PROTOCOLS: dict[str, str | type] = {
    "hermes": "selfcest_env.text.hermes:HermesProtocol",
    "terse": "selfcest_env.text.terse:TerseProtocol",
}
_METHODS = ("open", "replies", "documents", "fault", "neutralise", "parse", "render")


def make_protocol(name: str, where: str = "protocol") -> ProtocolText:
    """`hermes`, `terse` or `package.module:Class`. Raises `ConfigError` or `PlugInError` that says what to write."""
    cls = load(name, PROTOCOLS, what="protocol")
    if missing := [method for method in _METHODS if not callable(getattr(cls, method, None))]:
        raise PlugInError(f"protocol '{name}': {cls.__name__} has no method {missing[0]} (see ProtocolText)")
    protocol: ProtocolText = build(cls, {}, where=where)
    return protocol
