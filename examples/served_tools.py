"""A server with tools of your own, and a client that uses them both ways.

python examples/served_tools.py

prints:
    mcp_list_tools shop: price
    mcp_call price {"article":"example"} -> 12.5
    message: The tool answered: 12.5
    function_call now {}
    function_call_output 12:00
    message: The tool answered: 12:00
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import OpenAI
from openai.types.responses import FunctionToolParam, Response
from openai.types.responses.tool_param import Mcp

TOOLS = Path(__file__).with_name("shop_tools.py")
SHOP: Mcp = {"type": "mcp", "server_label": "shop", "require_approval": "never"}
NOW: FunctionToolParam = {"type": "function", "name": "now", "parameters": {"type": "object"}, "strict": False}


@contextmanager
def served() -> Iterator[str]:
    """The base URL of `antwort serve --scripted --memory --tools …`: a stand-in answers, which calls what it can."""
    command = [sys.executable, "-m", "antwort", "serve", "--scripted", "--memory", "--port", "0", "--tools", str(TOOLS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found, "the server did not start"
        try:
            yield f"{found[0]}/v1"
        finally:
            server.terminate()


def main() -> None:
    with served() as url, OpenAI(base_url=url, api_key="none") as client:
        show(client.responses.create(model="scripted", input="How much is it?", tools=[SHOP]))
        show(client.responses.create(model="scripted", input="What time is it?", tools=[NOW]))


def show(response: Response) -> None:
    for item in response.output:
        match item.type:
            case "mcp_list_tools":
                print(f"mcp_list_tools {item.server_label}:", ", ".join(each.name for each in item.tools))
            case "mcp_call":
                print(f"mcp_call {item.name} {item.arguments} -> {item.output}")
            case "function_call":
                print(f"function_call {item.name} {item.arguments}")
            case "function_call_output":
                print(f"function_call_output {item.output}")
            case _:
                print(f"message: {response.output_text}")


if __name__ == "__main__":
    main()
