"""How many schemas are accepted, how many answers come to their end, and how many of those validate.

    python -m ops.bench schemas                                        a generated set
    python -m ops.bench schemas --folder jsonschemabench/data --count 300

Each file of the folder, at any depth, is a schema, or an object with it as `schema`. Answers are validated by
jsonschema, formats included. A model that writes badly is no harm: only the form is judged. But a small one
repeats itself without end, or at a high temperature never closes a string: hence the sampling parameters.
`--closing-bias` is a logit bias of the tokens that close a string, a list or an object, or begin the next
item; with it, and with `--compact`, more answers come to their end.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.bench.schemas.generated import schemas
from pydantic import ValidationError
from transformers import AutoTokenizer

from millstream.cli.embedded.demo_model import demo_model
from millstream.wire.messages.response_format import ResponseFormat
from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.grammars.schemas.instance_check import problem_of_instance
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.outputs import Refused, Step
from millstream_worker.engine.protocol.request import EngineRequest, GrammarSpec, SamplingSpec

PROMPT = "Write an example of a JSON document that fits this schema. Be brief.\n\n{schema}"
SHOWN_CHARS = 1500  # of a schema, in its prompt
CLOSING = re.compile(r'(?=.)"?[\]}]*,?')  # a token's whole text
SHOWN = 12  # reasons, and answers that do not validate


@dataclass(slots=True)
class Outcome:
    """Of one schema at one temperature."""

    name: str
    refused: str = ""
    reason: str = ""  # how the answer ended
    tokens: list[int] = field(default_factory=list)
    invalid: str = ""  # why a complete answer does not validate


def main() -> None:
    chosen = _parser().parse_args()
    found = read(chosen.folder) if chosen.folder else schemas(chosen.count, chosen.seed)
    names = random.Random(chosen.seed).sample(sorted(found), min(chosen.count, len(found)))
    model = chosen.model or str(demo_model(print))
    config = EngineConfig(model, max_rows=chosen.rows, max_context=8192, compile_model="off")
    engine, info = build(config, lambda message: None, lambda: None)
    tokenizer: Any = AutoTokenizer.from_pretrained(info.tokenizer, local_files_only=True)
    bias = tuple((token, chosen.closing_bias) for token in closing(tokenizer) if chosen.closing_bias)
    for temperature in chosen.temperature:
        began = time.monotonic()
        sampling = SamplingSpec(
            temperature=temperature,
            min_p=chosen.min_p if temperature else 0.0,
            frequency_penalty=chosen.frequency_penalty,
            logit_bias=bias,
            seed=1,
            end_ids=info.eos_ids,
        )
        run = Run(engine, tokenizer, sampling, chosen.tokens, chosen.compact)
        outcomes = run.answers({name: found[name] for name in names})
        print(f"temperature {temperature:g}, {info.model}, {time.monotonic() - began:.0f} s")
        print(table(outcomes))


def closing(tokenizer: Any) -> list[int]:
    return sorted(token for text, token in tokenizer.get_vocab().items() if CLOSING.fullmatch(text))


@dataclass(slots=True, eq=False)
class Run:
    """All schemas with the same sampling parameters."""

    engine: Engine[Any]
    tokenizer: Any
    sampling: SamplingSpec
    tokens: int
    compact: bool

    def answers(self, found: Mapping[str, Any]) -> list[Outcome]:
        outcomes = {handle: Outcome(name) for handle, name in enumerate(found, 1)}
        for handle, outcome in outcomes.items():
            self._submit(handle, outcome, json.dumps(found[outcome.name]))
        while not self.engine.idle:
            for report in self.engine.take_compiled():
                if isinstance(report, Refused):
                    outcomes[report.handle].refused = report.message
            if (step := self.engine.step()) is not None:
                _take(step, outcomes)
            else:
                time.sleep(0.001)
        for outcome in outcomes.values():
            if outcome.reason in ("complete", "stop"):
                outcome.invalid = self._problem(found[outcome.name], outcome)
        return list(outcomes.values())

    def _submit(self, handle: int, outcome: Outcome, text: str) -> None:
        try:
            form = ResponseFormat(type="json_schema", text=text)
        except ValidationError as error:
            outcome.refused = f"at submit: {error.errors()[0]['msg']}"
            return
        message = {"role": "user", "content": PROMPT.format(schema=text[:SHOWN_CHARS])}
        chat = self.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        prompt = tuple(self.tokenizer.encode(chat, add_special_tokens=False))
        grammar = GrammarSpec(form.type, form.text, self.compact)
        refused = self.engine.add(EngineRequest(handle, prompt, self.tokens, self.sampling, grammar=grammar))
        assert refused is None, refused

    def _problem(self, schema: Any, outcome: Outcome) -> str:
        """Why the answer is none by its schema; empty if it is."""
        text = self.tokenizer.decode(outcome.tokens, skip_special_tokens=True)
        problem = problem_of_instance(json.dumps(schema), text, formats=True)
        return f"{problem}: {text:.80}" if problem else ""


def _take(step: Step, outcomes: Mapping[int, Outcome]) -> None:
    for handle, token in zip(step.handles, step.tokens, strict=True):
        outcomes[handle].tokens.append(token)
    for handle, reason in step.finished:
        outcomes[handle].reason = reason


def read(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.rglob("*.json")):
        value = json.loads(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(folder))] = value.get("schema", value) if "tests" in value else value
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    accepted = [one for one in outcomes if not one.refused]
    whole = [one for one in accepted if one.reason in ("complete", "stop")]
    invalid = [one for one in whole if one.invalid]
    ends = Counter(one.reason for one in accepted)
    refusals = Counter(_kind(one.refused) for one in outcomes if one.refused)
    lines = [
        f"schemas    {len(outcomes)}",
        f"accepted   {_share(len(accepted), len(outcomes))}",
        f"complete   {_share(len(whole), len(accepted))}  ({', '.join(f'{k} {v}' for k, v in ends.items())})",
        f"valid      {_share(len(whole) - len(invalid), len(whole))}",
        f"tokens     {sum(len(one.tokens) for one in outcomes):,}",
        *(f"refused    {count:4}  {reason}" for reason, count in refusals.most_common(SHOWN)),
        *(f"invalid    {one.name}: {one.invalid}" for one in invalid[:SHOWN]),
    ]
    return "\n".join(lines) + "\n"


def _kind(refusal: str) -> str:
    """What several refusals have in common."""
    words = refusal.removeprefix("json_schema: ").partition(" (at ")[0].split()
    return " ".join(words[:8])


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / max(whole, 1):.1%})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ops.bench schemas", description=__doc__)
    parser.add_argument("--folder", type=Path, help="of schemas; without it, they are generated")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="by default the demo's")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=2000, help="most of an answer")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.5])
    parser.add_argument("--min-p", type=float, default=0.0, help="at temperatures above 0")
    parser.add_argument("--frequency-penalty", type=float, default=0.0)
    parser.add_argument("--closing-bias", type=float, default=0.0)
    parser.add_argument("--compact", action="store_true", help="JSON without white space")
    return parser


if __name__ == "__main__":
    main()
