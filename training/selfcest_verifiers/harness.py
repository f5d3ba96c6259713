"""The harness through which an agent of the game asks for one turn. It runs in the process of verifiers."""

from __future__ import annotations

from typing import Any, NoReturn

import aiohttp
import verifiers.v1 as vf


class DelegationHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """The harness has no options of its own."""


class DelegationHarness(vf.Harness[DelegationHarnessConfig]):  # type: ignore[misc]
    """Sends the messages of a turn as one chat request, and no others: the game keeps the transcript of an agent.

    The default harness would send the messages of the trace. After a turn over its grant these differ from the
    transcript, from which the game drops that text.
    """

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, *_: Any, **__: Any) -> NoReturn:
        raise vf.HarnessError("this harness plays no task alone; use it with the environment of selfcest-verifiers")

    async def resume(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        messages: vf.Messages,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        """Send the messages to the interception server, which sets model and sampling options and keeps the trace."""
        # An empty text becomes None in verifiers, and providers expect a text.
        contents = [{"content": "", **message.model_dump(exclude_none=True)} for message in messages]
        body = {"model": ctx.model, "messages": contents}
        headers = {"Authorization": f"Bearer {secret}"}
        timeout = aiohttp.ClientTimeout(total=None)  # the timeouts of the agent's config hold
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.post(f"{endpoint}/chat/completions", json=body, headers=headers) as response,
        ):
            text = await response.text()
        return vf.ProgramResult(exit_code=0 if response.ok else 1, stdout="", stderr=text)
