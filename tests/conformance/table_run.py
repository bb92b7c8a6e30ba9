"""Sends the table to us, and to vLLM where it can be had, and prints what is wrong."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

from conformance.clients_page import refused_names
from conformance.environments import NotInstalled, vllm_python
from conformance.exchange import Answer, answers
from conformance.request_table import TABLE
from conformance.requests.rows import CHAT, COMPLETIONS, Row
from conformance.stands import CONTEXT, Stand
from conformance.verdicts import faults
from conformance.vllm_server import vllm_server

# Prints the fields of vLLM's two requests, as {path: [names]}.
_FIELDS = f"""
import json
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
fields = {{{CHAT!r}: ChatCompletionRequest, {COMPLETIONS!r}: CompletionRequest}}
print(json.dumps({{path: sorted(one.model_fields) for path, one in fields.items()}}))
"""


def is_met(stand: Stand) -> bool:
    """True if no request of the table is taken without effect and a sign, and none refused that the page does
    not name.
    """
    try:
        python = vllm_python()
        with vllm_server(python, stand.checkpoint, CONTEXT) as url:
            theirs = answers(url, TABLE)
        found = missing(python)
    except NotInstalled as error:
        print(f"vLLM is not there, and the table is judged without it: {error}")
        theirs, found = None, []
    ours = answers(stand.url, TABLE)
    _tell("ours", ours)
    if theirs is not None:
        _tell("vLLM", theirs)
        print(f"  answered by vLLM alone: {', '.join(alone(theirs, ours))}")
        print(f"  answered by us alone: {', '.join(alone(ours, theirs))}")
    found += faults(ours, theirs, refused_names())
    print("\n".join(f"  fault: {fault}" for fault in found))
    return not found


def missing(python: Path) -> list[str]:
    """Fields of vLLM's requests about which the table has no row."""
    code = [str(python), "-c", _FIELDS]
    told = subprocess.run(code, check=True, capture_output=True, text=True, timeout=120, cwd="/")
    tried = {(row.path, row.field) for row in TABLE}
    fields = json.loads(told.stdout.splitlines()[-1])
    return [
        f"{path} {name}: a field of vLLM's, and the table has no row about it"
        for path, names in fields.items()
        for name in names
        if (path, name) not in tried
    ]


def alone(some: dict[Row, Answer], others: dict[Row, Answer]) -> list[str]:
    """The names of rows that only some answer."""
    names = [row.name for row in TABLE if some[row].status == 200 != others[row].status]
    return list(dict.fromkeys(names))


def _tell(who: str, given: dict[Row, Answer]) -> None:
    counts = Counter(one.status for one in given.values())
    print(f"  {who}: {', '.join(f'{status}: {count}' for status, count in sorted(counts.items()))}")
