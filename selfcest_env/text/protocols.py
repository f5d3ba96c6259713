"""The registry of prompt formats, for the PettingZoo environment and for all language models."""

from __future__ import annotations

from selfcest_env.plugin import Registry
from selfcest_env.protocol import PromptFormat

PROTOCOLS = Registry(
    PromptFormat,
    "protocol",
    "selfcest.protocol",
    {
        "hermes": "selfcest_env.text.hermes:HermesProtocol",
        "hermes_each": "selfcest_env.text.hermes_each:HermesEachProtocol",
        "terse": "selfcest_env.text.terse:TerseProtocol",
        "terse_budget": "selfcest_env.text.terse:BudgetedTerseProtocol",
        "hermes_clones": "selfcest_env.text.prompt_variants:HermesClonesProtocol",
        "terse_clones": "selfcest_env.text.prompt_variants:TerseClonesProtocol",
    },
)


def make_protocol(name: str, where: str = "protocol") -> PromptFormat:
    """Make a prompt format from a built-in name or `package.module:Class`.

    Raises:
        ConfigError: the name is unknown.
        PlugInError: the class cannot be imported or is no prompt format.
    """
    return PROTOCOLS.make(name, {}, where=where)
