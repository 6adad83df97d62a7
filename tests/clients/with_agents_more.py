"""openai-agents, taken through more than all clients are."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    HostedMCPTool,
    MCPToolApprovalFunctionResult,
    MCPToolApprovalRequest,
    ModelSettings,
    SQLiteSession,
    function_tool,
)
from agents.items import ReasoningItem, TResponseInputItem

from clients.trying import WHOLE, NotApplicable, Play, Trial
from clients.with_agents import add, model_at, ran, run


async def handoff(at: Trial) -> None:
    """Look something up, hand over, and let the other one charge for it."""
    done: list[str] = []

    @function_tool
    def look_up(customer: str) -> str:
        """Look a customer up."""
        done.append(f"looked up {customer}")
        return "customer 7"

    @function_tool
    def charge(customer: int, amount: int) -> str:
        """Charge a customer."""
        done.append(f"charged {customer}")
        return f"{amount} paid"

    steps = 'call:look_up{"customer": "Ada"} call:transfer_to_biller{} call:charge{"customer": 7, "amount": 12}'
    async with model_at(at) as model:
        biller = Agent(name="biller", model=model, instructions="You charge.", tools=[charge])
        desk = Agent(name="desk", model=model, instructions="You look up.", tools=[look_up], handoffs=[biller])
        result = await ran(at, desk, f"case:handoff {steps} {at.mark}")
    assert done == ["looked up Ada", "charged 7"]
    assert result.last_agent.name == "biller"
    assert result.final_output == 'The tools say: customer 7 and {"assistant": "biller"} and 12 paid.'
    told = [body["messages"][0]["content"] for body in at.reached()]
    assert told == ["You look up.", "You look up.", "You charge.", "You charge."]


WORKSHOP = HostedMCPTool(
    tool_config={"type": "mcp", "server_label": "workshop", "allowed_tools": ["add"], "require_approval": "never"}
)


async def toolset(at: Trial) -> None:
    """The server's calls come back as input, and nothing is stored."""
    unkept = ModelSettings(store=False)
    first = await run(at, f'case:function call:add{{"a": 20, "b": 22}} {at.mark}', tools=[WORKSHOP], settings=unkept)
    assert first.final_output == "The tool says: 42."
    kinds = [item.type for item in first.new_items]
    assert kinds == ["mcp_list_tools_item", "tool_call_item", "message_output_item"]
    history: list[TResponseInputItem] = [*first.to_input_list(), {"role": "user", "content": "case:remember"}]
    second = await run(at, history, tools=[WORKSHOP], settings=unkept)
    assert 'assistant called add: {"a": 20, "b": 22} | tool: 42 | assistant: The tool says: 42.' in second.final_output


async def approval(at: Trial) -> None:
    """The SDK asks its callback, and sends the decision with all that was said."""
    unkept = ModelSettings(store=False)
    for approve, answer in ((True, "42"), (False, "The user denied this call. The reason: Not today.")):
        seen: list[str] = []

        def decide(
            request: MCPToolApprovalRequest, approve: bool = approve, seen: list[str] = seen
        ) -> MCPToolApprovalFunctionResult:
            seen.append(f"{request.data.server_label}.{request.data.name}{request.data.arguments}")
            return {"approve": True} if approve else {"approve": False, "reason": "Not today."}

        config: Any = {**WORKSHOP.tool_config, "require_approval": "always"}
        tool = HostedMCPTool(tool_config=config, on_approval_request=decide)
        cue = f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'
        result = await run(at, cue, tools=[tool], settings=unkept)
        assert seen == ['workshop.add{"a": 20, "b": 22}']
        assert result.final_output == f"The tool says: {answer}."


async def session(at: Trial) -> None:
    kept = SQLiteSession(at.mark)
    try:
        await run(at, f'case:function call:add{{"a": 20, "b": 22}} {at.mark}', tools=[add], session=kept)
        second = await run(at, "case:remember", session=kept)
    finally:
        kept.close()
    assert 'assistant called add: {"a": 20, "b": 22} | tool: 42 | assistant: The tool says: 42.' in second.final_output


async def sealed_reasoning(at: Trial) -> None:
    """What the model thought comes back to it in the next turn, and the server keeps nothing."""
    at = at.bared()
    sealed = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    first = await run(at, f"case:reasoning {at.mark}", settings=sealed)
    [thought] = [item for item in first.new_items if isinstance(item, ReasoningItem)]
    assert thought.raw_item.encrypted_content
    history: list[TResponseInputItem] = [*first.to_input_list(), {"role": "user", "content": "case:remember"}]
    second = await run(at, history, settings=sealed)
    assert f"assistant thought: First I think about it: {at.mark}" in second.final_output


async def slow_tool(at: Trial) -> None:
    """The tool works longer than the client waits for a byte."""
    if not at.streamed:
        raise NotApplicable(WHOLE)
    slow: Any = {"type": "mcp", "server_label": "workshop", "allowed_tools": ["slow"], "require_approval": "never"}
    async with model_at(at, read=1.5) as model:
        agent = Agent(name="worker", model=model, tools=[HostedMCPTool(tool_config=slow)])
        result = await ran(at, agent, f'case:slow-tool call:slow{{"seconds": 3}} {at.mark}')
    assert result.final_output == "The tool says: worked for 3 s."


MORE: dict[str, Play] = {
    "handoff": handoff,
    "toolset": toolset,
    "approval": approval,
    "session": session,
    "sealed-reasoning": sealed_reasoning,
    "slow-tool": slow_tool,
}
