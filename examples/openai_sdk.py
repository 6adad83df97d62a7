"""OpenAI's client with a function of its own: the model asks for it, the client runs it, the model goes on.

python examples/openai_sdk.py

prints:
    the model asks for weather({"city":"example"})
    The tool answered: sunny in example

The base URL is that of any antwort server; here it is one in this process, where a stand-in plays the model.
"""

import json

from openai import OpenAI
from openai.types.responses import FunctionToolParam
from openai.types.responses.response_input_param import FunctionCallOutput

from antwort import Settings
from antwort.asgi import create_app
from loopback import serving

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


def weather(city: str) -> str:
    return f"sunny in {city}"


def main() -> None:
    app = create_app(Settings(scripted=True, memory=True))
    with serving(app) as url, OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        first = client.responses.create(model="scripted", input="How is the weather?", tools=[WEATHER])
        results: list[FunctionCallOutput] = []
        for item in first.output:
            if item.type == "function_call":
                print(f"the model asks for {item.name}({item.arguments})")
                result = weather(**json.loads(item.arguments))
                results.append({"type": "function_call_output", "call_id": item.call_id, "output": result})
        second = client.responses.create(
            model="scripted", input=[*results], previous_response_id=first.id, tools=[WEATHER]
        )
        print(second.output_text)


if __name__ == "__main__":
    main()
