"""The Python clients."""

from __future__ import annotations

from clients.with_agents import AGENTS
from clients.with_langchain import LANGCHAIN
from clients.with_openai import OPENAI
from clients.with_pydantic_ai import PYDANTIC_AI

PYTHON_CLIENTS = (OPENAI, AGENTS, LANGCHAIN, PYDANTIC_AI)
