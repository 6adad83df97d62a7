"""A plain script without async: one runner holds the event loop, and the engine lives as long as it does.

python examples/sync_script.py

prints:
    You said: Hello
    You said: And again
    in memory: 2 responses, the last one follows the first
"""

import asyncio

from antwort import Engine
from antwort.testing import DemoProvider


def main() -> None:
    with asyncio.Runner() as runner:
        engine = Engine(DemoProvider())
        runner.run(engine.open())
        try:
            first = runner.run(engine.create(input="Hello"))
            print(first.output_text)
            second = runner.run(engine.create(input="And again", previous_response_id=first.id))
            print(second.output_text)
            follows = second.previous_response_id == first.id
            print("in memory: 2 responses, the last one", "follows the first" if follows else "stands alone")
        finally:
            runner.run(engine.close())


if __name__ == "__main__":
    main()
