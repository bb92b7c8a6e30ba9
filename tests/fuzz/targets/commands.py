"""Command lines and environments: of `millstream`, whose server is not there, and of a worker's settings."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from functools import partial
from random import Random
from unittest.mock import patch

from typer.testing import CliRunner

from fuzz.mutation import mutate
from fuzz.target import Refused, Target, check, folder
from fuzz.targets.batch import line
from fuzz.values import TEXTS, integer, text
from millstream.cli.app import app
from millstream.cli.shared import command_run
from millstream.cli.shared.exits import ExitCode
from millstream.client.session.options import ClientOptions
from millstream_worker import settings

NO_SERVER = "unix:///dev/null/no.sock"
# Also where an option takes the flag for its value: no command may start a server of its own.
_ENVIRONMENT = {"MILLSTREAM_REDIS_URL": NO_SERVER, "COLUMNS": "200", "TERM": "dumb"}
_LINES_OF_ERROR = 120  # a usage message repeats the word that is wrong, however long


# --- millstream

_COMMANDS: dict[str, tuple[str, ...]] = {
    "submit": ("--id=a", "--max-tokens=5", "--temperature=0.5", "--stop=x", "--param=top_p=0.5",
               "--lane=batch", "--deadline-s=9", "--tenant=t", "--raw", "--system=s", "--durability=aof",
               "--replicas=1", '--chat-template-kwargs={"x": 1}', "--regex=w[0-9]", "--choice=w1"),
    "stream": ("--cursor=1-1",),
    "result": ("--timeout-s=0.01",),
    "cancel": (),
    "status": (),
    "dead list": ("--limit=3",),
    "dead show": (),
    "dead requeue": ("--all", "--wait-s=0"),
    "dead drop": ("--all",),
    "batch run": ("--window=3", "--lane=batch", "--tenant=t", "--retry-failed", "--strict",
                  "--retry-incomplete",
                  "--price-per-hour=1", "--durability=none", "--output=out.jsonl"),
}  # fmt: skip
_POSITIONAL = {
    "submit": "w1 w2", "dead list": "", "dead requeue": "0@1-1", "dead drop": "0-a", "dead show": "0@1-1",
    "batch run": "in.jsonl",
}  # fmt: skip

Command = tuple[list[str], bytes]


def _command(chance: Random) -> Command:
    name = chance.choice(list(_COMMANDS))
    options = [one for one in (*_COMMANDS[name], "--queue=q", "--json", "--help") if chance.random() < 0.25]
    first = _POSITIONAL.get(name, "0-a")
    words = [*name.split(), *([first] if first else []), *options]
    if chance.random() < 0.7:
        place = chance.randrange(len(words))
        words[place] = _other(chance, words[place])
    if chance.random() < 0.15:
        words.insert(chance.randrange(len(words) + 1), text(chance))
    url = f"--redis-url={NO_SERVER}"
    return [*words, url], line(chance)


def _other(chance: Random, word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name}={mutate(chance, value, text)}" if equals else str(mutate(chance, word, text))


def _invoke(case: Command) -> None:
    """In a folder with a file of one line, at a server that is not there."""
    arguments, data = case
    arguments = [_harmless(one) for one in arguments]
    impatient = patch.object(command_run, "ClientOptions", partial(ClientOptions, reconnect_s=0.0))
    with _folder(data), patch.dict(os.environ, _ENVIRONMENT), impatient:
        said = CliRunner().invoke(app, arguments, input=data)
    if said.exception is not None and not isinstance(said.exception, SystemExit):
        raise said.exception
    assert said.exit_code in tuple(ExitCode), f"exit code {said.exit_code}"
    assert "Traceback" not in said.stderr
    if said.exit_code != ExitCode.OK:
        assert said.stderr.strip() or said.stdout.strip(), f"exit code {said.exit_code} without a word"
        assert len(said.stderr.splitlines()) < _LINES_OF_ERROR, said.stderr[:2000]
        raise Refused(f"{said.exit_code}: {(said.stderr or said.stdout)[:300]}")


def _harmless(argument: str) -> str:
    """No other server, and no file outside of the folder."""
    own = argument.startswith("--redis-url=unix:")
    return argument if own else argument.replace("/", "_").replace("\x00", "_")


@contextlib.contextmanager
def _folder(data: bytes) -> Iterator[None]:
    (folder() / "in.jsonl").write_bytes(data)
    for left in folder().glob("out*"):
        left.unlink()
    with contextlib.chdir(folder()):
        yield


# --- millstream-worker

_VALUES = (
    *TEXTS, '"', "it's", "a 'b c' d", "\\", "0", "1", "7", "0.5", "1e9", "-3", "nan", "inf", "true", "off",
    "auto", "cpu", "cuda:1", "cuda:x",
    "2GiB", "60%", "[1]", '{"a": 1}', "redis://h:1/0", "rediss://u:p@h", "unix:///x", "http://h", "debug",
    "json", "model",
)  # fmt: skip
_FIELDS = tuple(settings.Settings.model_fields)


def _environment(chance: Random) -> dict[str, str]:
    names = chance.sample(_FIELDS, chance.randrange(4))
    given = {"MODEL": "m"} if chance.random() < 0.9 else {}
    given |= {
        mutate(chance, name.upper(), text) if chance.random() < 0.1 else name.upper(): _value(chance)
        for name in names
    }
    return {f"MILLSTREAM_{name}": value for name, value in given.items()}


def _value(chance: Random) -> str:
    return str(integer(chance)) if chance.random() < 0.4 else chance.choice(_VALUES)


def _from_environment(case: dict[str, str]) -> None:
    given = {_settable(name): _settable(value) for name, value in case.items()}
    with patch.dict(os.environ, given, clear=True):
        _load([])
    settings.mistyped(given)


def _settable(text: str) -> str:
    """What an environment can hold."""
    return text.replace("\x00", "").replace("=", "").encode(errors="ignore").decode()


def _flags(chance: Random) -> list[str]:
    words = ["--model=m"] if chance.random() < 0.9 else []
    for name in chance.sample(_FIELDS, chance.randrange(3)):
        flag, value = f"--{name.replace('_', '-')}", _value(chance)
        words += chance.choice(([f"{flag}={value}"], [flag, value], [flag]))
    if chance.random() < 0.1:
        words.append(text(chance))
    return words


def _from_flags(case: list[str]) -> None:
    with patch.dict(os.environ, {}, clear=True):
        _load(case)


def _load(arguments: list[str]) -> None:
    errors, answers = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(answers):
            chosen = settings.load(arguments)
    except settings.BadSettings as error:
        check(error.lines and all(len(one) < 6000 for one in error.lines), "a line that nobody can read")
        raise Refused(str(error)[:300]) from error
    except SystemExit as ended:
        check(ended.code in (0, 2), f"exit code {ended.code}")
        check(errors.getvalue() or answers.getvalue(), "it ends without a word")
        raise Refused(errors.getvalue()[-300:] or "help") from ended
    chosen.engine_config()
    assert chosen.engine_argv, "no engine to start"


REFUSED = (Refused,)
TARGETS = (
    Target("command-lines", _command, _invoke, REFUSED, share=0.02),
    Target("environments", _environment, _from_environment, REFUSED, share=0.05),
    Target("worker-flags", _flags, _from_flags, REFUSED, share=0.02),
)
