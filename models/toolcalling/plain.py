"""What the demo model says where there are no tools: `python plain.py --model demo.gguf --out plain.jsonl`.

The adapter is trained on this, too, so that it leaves the model's own way to talk alone.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
import yaml
from tokens import tokenizer_of
from torch.nn import functional as F
from train import Llama

END = 2
CORPUS = Path(__file__).parent / "corpus"
ASKS = (
    "What is a {animals}?",
    "Tell me something about {cities}.",
    "Write two sentences about a {animals} in {cities}.",
    "Why do people like {foods}?",
    "How do I cook {foods}?",
    "What is {sports}?",
    "Give me three ideas for a weekend in {cities}.",
    "Write a short poem about the colour {colours}.",
    "What should I know about {countries}?",
    "Is {cities} a good place to live?",
    "Explain {subjects} to a child.",
    "Why should I learn {subjects}?",
    "My name is {first_names}. Say hello to me.",
    "Write a short story about {first_names} and a {animals}.",
    "What is the capital of {countries}?",
    "Which {foods} do you recommend?",
    "Who was the first person to play {sports}?",
    "Hi, I am {first_names}. Who are you?",
    "Give me a name for a shop that sells {foods}.",
    "What is the difference between {subjects} and philosophy?",
)


def asks(number: int, dice: random.Random) -> list[str]:
    words = {key: values for key, values in yaml.safe_load((CORPUS / "words.yaml").read_text()).items() if values}
    made = []
    while len(made) < number:
        template = dice.choice(ASKS)
        made.append(template.format(**{key: dice.choice(values) for key, values in words.items()}))
    return list(dict.fromkeys(made))


@torch.no_grad()
def answered(model: Llama, prompts: list[list[int]], most: int, device: str) -> list[list[int]]:
    """The likeliest words, all prompts side by side. Answers that are cut are empty: they would teach to break off."""
    texts = [list(prompt) for prompt in prompts]
    open_ends = list(range(len(texts)))
    for _ in range(most):
        longest = max(len(texts[index]) for index in open_ends)
        rows = torch.zeros(len(open_ends), longest, dtype=torch.long, device=device)
        for row, index in enumerate(open_ends):
            rows[row, : len(texts[index])] = torch.tensor(texts[index], device=device)
        ends = torch.tensor([len(texts[index]) - 1 for index in open_ends], device=device)
        states = model(rows)[torch.arange(len(open_ends), device=device), ends]
        for index, token in zip(open_ends, F.linear(states, model.embedding).argmax(-1).tolist(), strict=True):
            texts[index].append(token)
        open_ends = [index for index in open_ends if texts[index][-1] != END]
        if not open_ends:
            break
    return [text[len(prompt) : -1] if text[-1] == END else [] for text, prompt in zip(texts, prompts, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--number", type=int, default=1500)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Llama(chosen.model, 1, 1, 0.0, device, torch.bfloat16 if device == "cuda" else torch.float32).eval()
    tokenizer = tokenizer_of(chosen.model)
    wanted = asks(chosen.number, random.Random(3))
    prompts = [
        tokenizer.encode(f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
        for ask in wanted
    ]
    with chosen.out.open("w") as file:
        for at in range(0, len(prompts), 500):
            answers = answered(model, prompts[at : at + 500], 160, device)
            for ask, answer in zip(wanted[at:], answers, strict=False):
                if answer:
                    said = tokenizer.decode(answer)
                    line = [{"role": "user", "content": ask}, {"role": "assistant", "content": said}]
                    file.write(json.dumps({"plain": line}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
