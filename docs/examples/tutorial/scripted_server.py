"""An OpenAI-compatible server that answers the questions of docs/tutorial.md by rule: no model, no network, no key.

Start it with `python docs/examples/tutorial/scripted_server.py`, or with another port as its argument. What it plays is
always right, so it shows how a study works and says nothing of delegation.
"""

from __future__ import annotations

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def play(messages: list[dict[str, str]]) -> str:
    """The next turn of a root that hands each report to a clone, of one that sees all reports, or of a clone."""
    system, question, last = messages[0]["content"], messages[1]["content"], messages[-1]["content"]
    names = re.findall(r"[A-Z]\w+", question.split("?")[0].removeprefix("How many"))
    if len(messages) > 2:  # the clones' replies, as "clone 1: 35"
        return f"Answer: {sum(map(int, re.findall(r'clone [0-9]+: ([0-9]+)', last)))}"
    if "You can delegate" in system:
        asked = [{"objective": f"How many euros did {n} spend?", "shared_context": [f"{n}'s report"]} for n in names]
        call = {"name": "spawn_clone", "arguments": {"objectives": asked}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"
    spent = [re.search(rf"In all {name} spent ([0-9]+) euros", question) for name in names]
    return f"Answer: {sum(int(found[1]) for found in spent if found)}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = play(body["messages"])
        answer = {
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"completion_tokens": len(text.split())},
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8000), Handler)
    print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
    server.serve_forever()
