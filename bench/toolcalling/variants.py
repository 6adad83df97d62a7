"""Compare ways of asking, without an adapter: prompt, order, examples, sampling. To choose by, on `dev`."""

from __future__ import annotations

from toolcalling.data import load_tools
from toolcalling.forms import Form
from toolcalling.measure import measure, record, score, table
from toolcalling.modes import Formed, InTwoSteps, Mode
from toolcalling.setting import model_of, parser, questions, write

VARIANTS: dict[str, Mode] = {
    "signatures (as antwort does)": Formed(Form()),
    "JSON schemas": Formed(Form(lists_schemas=True)),
    "2 examples": Formed(Form(examples=2)),
    "4 examples": Formed(Form(examples=4)),
    "2 examples, a call last": Formed(Form(examples=2, ends_in_call=True)),
    "4 examples, a call last": Formed(Form(examples=4, ends_in_call=True)),
    "JSON schemas, 4 examples": Formed(Form(lists_schemas=True, examples=4)),
    "arguments first": Formed(Form(arguments_first=True)),
    "answer first": Formed(Form(answer_first=True)),
    "answer first, 4 examples": Formed(Form(answer_first=True, examples=4)),
    "temperature 0.2": Formed(Form(temperature=0.2)),
    "in two steps": InTwoSteps(),
}


def main() -> None:
    made = parser(str(__doc__), half="dev")
    made.add_argument("--only", default="", metavar="WORDS", help="variants whose name has these words in it")
    asked = made.parse_args()
    model, tools, half = model_of(asked.model), load_tools(), questions(asked.half, asked.every)
    scores, results = {}, {}
    for name, mode in VARIANTS.items():
        if asked.only in name:
            answers = measure(mode, half, tools, model)
            scores[name], results[name] = score(answers), record(answers)
            write(asked.out / f"toolcalling-variants-{asked.half}.json", results)
            print(table("", {name: scores[name]}).splitlines()[-1], flush=True)
    print(f"\n{len(half)} questions of `{asked.half}`, {len(tools)} tools, no adapter\n")
    print(table("variant", scores))


if __name__ == "__main__":
    main()
