"""Tools of your own: a toolset that requests name, and a function that answers for one that a request declares.

python examples/own_tools.py

prints:
    the model is told: Prices are in euros.
    mcp_list_tools shop: price, stock
    mcp_call shop.price {"article":"tea"} -> 3.5
    message: The tea is 3.50 €.
    function_call now {}
    function_call_output: 12:00
    message: It is noon.
"""

import asyncio

from antwort import Engine, LocalExecutor, Response, ToolContext, Toolset, tool
from antwort.api.items import FunctionCall, FunctionCallOutput, McpCall, McpListTools, Message
from antwort.testing import ScriptedProvider, answer, call, say

shop = Toolset("shop", instructions="Prices are in euros.")


@shop.tool
def price(article: str) -> float:
    """What an article costs."""
    return {"tea": 3.5}[article]


@shop.tool(timeout=5, read_only=True)
async def stock(article: str, context: ToolContext) -> str:
    """How many there are. The context is not shown to the model: it is for the function."""
    context.progress("counting")
    return f"{context.identity.tenant} has 7 of {article}"


@tool
def now() -> str:
    """What time it is."""
    return "12:00"


async def main() -> None:
    provider = ScriptedProvider(
        answer(call("price", article="tea")),
        answer(say("The tea is 3.50 €.")),
        answer(call("now")),
        answer(say("It is noon.")),
    )
    async with Engine(provider, executors=[shop, LocalExecutor(now)]) as engine:
        first = await engine.create(input="How much is the tea?", tools=[{"type": "mcp", "server_label": "shop"}])
        print("the model is told:", provider.requests[0].messages[0].content)
        show(first)
        show(await engine.create(input="What time is it?", tools=[{"type": "function", "name": "now"}]))


def show(response: Response) -> None:
    for item in response.output:
        match item:
            case McpListTools():
                print(f"mcp_list_tools {item.server_label}:", ", ".join(each.name for each in item.tools))
            case McpCall():
                print(f"mcp_call {item.server_label}.{item.name} {item.arguments} -> {item.output}")
            case FunctionCall():
                print(f"function_call {item.name} {item.arguments}")
            case FunctionCallOutput():
                print(f"function_call_output: {item.output}")
            case Message():
                print(f"message: {response.output_text}")


if __name__ == "__main__":
    asyncio.run(main())
