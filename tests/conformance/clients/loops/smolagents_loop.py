"""smolagents: `smolagents_loop.py URL`, by an interpreter that has it and nothing of Millstream."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any, ClassVar

from rich.console import Console
from smolagents import CodeAgent, OpenAIModel, Tool, ToolCallingAgent
from smolagents.memory import ActionStep
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.utils import AgentMaxStepsError
from tries import OWN, QUESTION, tried

STEPS = 2
TOKENS = 150
QUIET = AgentLogger(LogLevel.OFF, Console(quiet=True))  # it would print all that streams


class LookUp(Tool):
    name = "look_up"
    description = "Looks a mill up."
    inputs: ClassVar = {"old": {"type": "boolean", "description": "an old one"}}
    output_type = "string"

    def __init__(self, calls: list[object]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, old: bool) -> str:
        self.calls.append(old)
        return "it is by the water"


def main(url: str) -> None:
    print(f"smolagents {version('smolagents')}")
    own: dict[str, Any] = {"max_tokens": TOKENS, "extra_body": OWN, "client_kwargs": {"max_retries": 0}}
    model = OpenAIModel("default", f"{url}/v1", "none", **own)
    structured = {"use_structured_outputs_internally": True}
    for kind, more in ((ToolCallingAgent, {}), (CodeAgent, {}), (CodeAgent, structured)):
        for streamed in (False, True):
            given = more | {"stream_outputs": streamed}
            what = f"{kind.__name__}{', structured' * bool(more)}{', streamed' * streamed}"
            tried(what, lambda calls, kind=kind, given=given: run(kind, model, given, calls))


def run(kind: type[Any], model: OpenAIModel, given: dict[str, Any], calls: list[object]) -> None:
    """It answers in the last step, if not before. A code that is none is the model's; a step without a
    message is an error of its request.
    """
    agent = kind([LookUp(calls)], model, max_steps=STEPS, logger=QUIET, **given)
    agent.run(QUESTION)
    taken = [step for step in agent.memory.steps if isinstance(step, ActionStep)]
    steps = [step for step in taken if not isinstance(step.error, AgentMaxStepsError)]
    assert steps
    for step in steps:
        assert step.model_output_message is not None, step.error
    if kind is CodeAgent:
        calls += steps  # the tiny model writes no Python: a code that was run is a call


if __name__ == "__main__":
    main(sys.argv[1])
