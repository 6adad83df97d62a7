"""A real MCP server to try things on, made with the MCP SDK.

python -m antwort.testing.mcp --port 8001
python -m antwort.testing.mcp --transport stdio

`TryServer` is the server: its tools, what it was asked (`record`) and what is wrong with it (`faults`, which may be
changed while it serves). `served` puts it on a port of this process. Importing this takes the SDK, so over a second;
`pip install 'antwort[testing]'` brings it.
"""

from importlib.util import find_spec

if find_spec("mcp") is None:
    raise ModuleNotFoundError("antwort.testing.mcp needs the MCP SDK: pip install 'antwort[testing]'", name="mcp")

from antwort.testing.mcp.faults import Faults
from antwort.testing.mcp.record import Entry, Record
from antwort.testing.mcp.server import TryServer
from antwort.testing.mcp.web import Served, served

__all__ = ["Entry", "Faults", "Record", "Served", "TryServer", "served"]
