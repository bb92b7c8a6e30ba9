"""Another build of Millstream beside this one: a copy of both packages, changed as a later release would be.
Its processes run side by side with those of this tree, on the same queues.

`next_build`: writes and takes a message version more; every script has another body, and so another SHA1;
requests, log entries, deltas, results, job hashes, lane entries, heartbeats and metadata have fields that
this build does not know. `previous_build`: the same versions as this tree, with other script bodies; its
workers know no digest of their model, nobody looks for workers that load, every tool is strict, no answer
says why its calls do not fit, and no delta has pieces of calls.

    python -m support.versions.next_version FOLDER --redis-url=… --model=…

is a worker of the next build in FOLDER, which is made where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.wire.versions import WIRE_VERSION
from support.servers.servers import Server
from support.workers.counting_worker import worker_process

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
PACKAGES = ("producer/millstream", "worker/millstream_worker")
NEXT = WIRE_VERSION + 1  # the version that the next build writes

_WIRE = "producer/millstream/wire"
_VERSIONS = f"{_WIRE}/versions.py"
_SUBMIT = f"{_WIRE}/lua/job/submit.lua"
_SUPERVISOR = "worker/millstream_worker/engine_link/supervisor.py"
_TOOLS, _CHOICES = f"{_WIRE}/messages/tools.py", f"{_WIRE}/messages/choices.py"

# Each: file, what stands in it exactly once, what stands there in the next build.
_REPLACED = (
    (_VERSIONS, f"WIRE_VERSION = {WIRE_VERSION} ", f"WIRE_VERSION = {NEXT} "),
    (_SUBMIT, "'submits', 1,", "'submits', 1, 'added', 'hash',"),
    (_SUBMIT, "'b', payload)", "'b', payload, 'added', 'entry')"),
    (f"{_WIRE}/lua/job/append.lua", "'b', body)", "'b', body, 'added', 'log')"),
)
_EARLIER = (  # the same of the build before
    (_SUPERVISOR, "self.callbacks.found(model, digest)", 'self.callbacks.found(model, "")'),
    (_SUPERVISOR, "replace(info, fallbacks=fallbacks)", 'replace(info, fallbacks=fallbacks, digest="")'),
    (
        "worker/millstream_worker/upkeep/maintenance.py",
        "exists(shard.worker(name), shard.loading(name))",
        "exists(shard.worker(name))",
    ),
    (
        f"{_WIRE}/state/heartbeat.py",
        "loading, workers = await _read(redis, shards, ShardKeys.loading, ShardKeys.worker)",
        "loading, workers = list[Heartbeat](), await read_workers(redis, *shards)",
    ),
    (_TOOLS, "from typing import ", "from typing import ClassVar, "),
    (_TOOLS, "strict: bool = False", "strict: ClassVar[bool] = True"),
    (_CHOICES, "from typing import ", "from typing import ClassVar, "),
    (_CHOICES, 'schema_error: str = ""', 'schema_error: ClassVar[str] = ""'),
    (_CHOICES, "tool_call_deltas: tuple", "tool_call_deltas: ClassVar[tuple"),
    (_CHOICES, "ToolCallDelta, ...] = ()", "ToolCallDelta, ...]] = ()"),
)

_IN_REQUESTS = """

_draft = draft


def draft(*args: Any, **kwargs: Any) -> Draft:
    import dataclasses

    from millstream.wire.versions import WIRE_VERSION

    made = _draft(*args, **kwargs)
    fields = codec.unpack(made.payload)
    fields["sampling"] = fields.get("sampling", {}) | {"added": [0.5]}
    fields |= {"version": WIRE_VERSION, "added": {"by": "next"}}
    return dataclasses.replace(made, payload=codec.pack(fields), version=WIRE_VERSION)
"""

_IN_ENCODING = """

def _with_more(make: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> bytes:
        fields = codec.unpack(make(*args, **kwargs), codec.MAX_RESULT_BYTES)
        for choice in fields.get("choices", ()):
            choice["added"] = ["next"]
        return codec.pack(fields | {"added": {"by": "next"}})

    return made


delta, result = _with_more(delta), _with_more(result)
"""

_WITH_MORE_ARGUMENTS = """

_{name} = {name}


def {name}(*args: Any, **kwargs: Any) -> Any:
    import dataclasses

    call = _{name}(*args, **kwargs)
    return dataclasses.replace(call, args=(*call.args, "added", "next"))
"""

_APPENDED = (
    ("producer/millstream/client/submit/requests.py", _IN_REQUESTS),
    ("worker/millstream_worker/jobs/encoding.py", _IN_ENCODING),
    (f"{_WIRE}/state/heartbeat.py", _WITH_MORE_ARGUMENTS.format(name="beat")),
    (f"{_WIRE}/state/queue_info.py", _WITH_MORE_ARGUMENTS.format(name="create_or_read")),
)


@dataclass(frozen=True, slots=True)
class Build:
    """The packages under `folder`, for processes."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """This process' own, with which any python runs this build's packages."""
        paths = [*(self.folder / Path(package).parent for package in PACKAGES), TESTS]
        return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}

    def worker(
        self, server: Server | str, model: str, **changes: Any
    ) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """`python -m millstream_worker` of this build; killed at the end if it still runs."""
        return worker_process(server, model, environment=self.environment, **changes)

    @contextlib.asynccontextmanager
    async def client(self, server: Server | str, queue: str = "default") -> AsyncIterator[ForeignClient]:
        """A client of this build, in a process of its own."""
        url = server if isinstance(server, str) else server.url
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(TESTS / "support" / "versions" / "foreign_client.py"),
            url,
            queue,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
        )
        try:
            yield ForeignClient(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


class Refused(Exception):
    """What a foreign client raised: the name of the error, and its message."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


class ForeignClient:
    """One call at a time; raises Refused."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    async def submit(self, prompt: str, **fields: Any) -> str:
        return await self._ask("submit", prompt=prompt, **fields)

    async def stream(self, job_id: str) -> str:
        """The text of the whole stream, once it has ended."""
        return await self._ask("stream", job_id=job_id)

    async def wait(self, job_id: str) -> str:
        """The result's text."""
        return await self._ask("wait", job_id=job_id)

    async def choice(self, job_id: str) -> dict[str, Any]:
        """The fields of the result's first choice that this build knows."""
        return await self._ask("choice", job_id=job_id)

    async def _ask(self, method: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn:
            self._process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
            await self._process.stdin.drain()
            kind, answer = json.loads(await self._process.stdout.readline())
        if kind != "ok":
            raise Refused(kind, answer)
        return answer


def next_build(folder: Path) -> Build:
    return _made(folder, lambda copy: (_with_other_scripts(copy, "next"), _edit(copy, _REPLACED, _APPENDED)))


def previous_build(folder: Path) -> Build:
    return _made(folder, lambda copy: (_with_other_scripts(copy, "previous"), _edit(copy, _EARLIER)))


def older_build(folder: Path, newest: int = NEXT - 2) -> Build:
    """One that reads and writes no version above `newest`."""
    version = (_VERSIONS, f"WIRE_VERSION = {WIRE_VERSION} ", f"WIRE_VERSION = {newest} ")
    return _made(folder, lambda copy: _edit(copy, [version]))


def _made(folder: Path, change: Callable[[Path], object]) -> Build:
    """Under its name only when it is whole: several processes may make it at once."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(dir=folder.parent))
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        change(copy)
        try:
            copy.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(copy)
    return Build(folder)


def _with_other_scripts(copy: Path, name: str) -> None:
    paths = [path for path in (copy / PACKAGES[0] / "wire/lua").rglob("*.lua") if path.parent.name != "parts"]
    assert paths
    for path in paths:
        path.write_text(f"local build = '{name}'\n{path.read_text('utf-8')}", "utf-8")


def _edit(
    copy: Path, replaced: Iterable[tuple[str, str, str]], appended: Iterable[tuple[str, str]] = ()
) -> None:
    for file, now, then in replaced:
        path = copy / file
        text = path.read_text("utf-8")
        assert text.count(now) == 1, f"{file} was changed: {now!r} is there {text.count(now)} times"
        path.write_text(text.replace(now, then), "utf-8")
    for file, code in appended:
        path = copy / file
        path.write_text(path.read_text("utf-8") + code, "utf-8")  # of a module that is there


def main(arguments: Sequence[str]) -> None:
    """Become a worker of the build in the folder that is named first."""
    build = next_build(Path(arguments[0]))
    command = [sys.executable, "-m", "millstream_worker", *arguments[1:]]
    os.execve(sys.executable, command, build.environment)


if __name__ == "__main__":
    main(sys.argv[1:])
