"""Settings: from flags and environment, and every mistake at once, by name and value."""

from __future__ import annotations

import sys

import pytest

from millstream_worker import settings
from millstream_worker.engine.protocol.config import EngineConfig

GOOD = ["--model", "m"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "model: is required: a local folder, a GGUF file or a hub id (got ''); set MILLSTREAM_MODEL or"),
        (
            ["--model", "./nowhere"],
            "model: no such file or folder (got './nowhere'); set MILLSTREAM_MODEL or",
        ),
        (
            ["--model", __file__],
            "model: a single file must be a .gguf; of a safetensors model, name the fold",
        ),
        ([*GOOD, "--queue", "a{b"], "queue: 1 to 100 characters without braces"),
        ([*GOOD, "--redis-url", "http://u:secret@h"], "redis_url: must begin with redis://"),
        ([*GOOD, "--redis-url", "redis://u:secret@h:port"], "redis_url: not a Redis URL"),
        ([*GOOD, "--redis-url", "redis://h?socket_timeout=1"], "redis_url: not an option of the URL"),
        ([*GOOD, "--name", "my worker"], "name: "),
        ([*GOOD, "--kv-memory", "1KiB"], "kv_memory: holds no KV block: give 64KiB or more"),
        ([*GOOD, "--kv-memory", "120%"], "kv_memory: holds no KV block: give 64KiB or more"),
        ([*GOOD, "--kv-memory", "plenty"], "kv_memory: must be auto, a size (2GiB, 500MB) or a share"),
        ([*GOOD, "--silence-timeout-s", "1"], "silence_timeout_s: "),
        ([*GOOD, "--max-rows", "many"], "max_rows: "),
        ([*GOOD, "--lookahead", "0"], "lookahead: should be greater than or equal to 1 (got '0')"),
        ([*GOOD, "--grace-s", "nan"], "grace_s: "),
        ([*GOOD, "--engine-command", "it's"], "engine_command: cannot be read as a command line"),
        ([*GOOD, "--lease-s", "5"], "lease_s 5 is under twice renew_s 10"),
    ],
)
def test_a_bad_setting_is_named_with_its_value(flags: list[str], says: str) -> None:
    with pytest.raises(settings.BadSettings) as bad:
        settings.load(flags)
    assert len(bad.value.lines) == 1
    assert bad.value.lines[0].startswith(says)
    assert "secret" not in str(bad.value)


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_QUEUE", "from-environment")
    monkeypatch.setenv("MILLSTREAM_MAX_ROWS", "7")
    chosen = settings.load([*GOOD, "--queue", "from-flag", "--no-prefix-cache", "--burst"])
    assert (chosen.queue, chosen.max_rows, chosen.prefix_cache, chosen.burst) == ("from-flag", 7, False, True)


def test_the_engine_gets_its_part() -> None:
    for size in ("auto", "2GiB", "500MB", "1073741824", "0.6", ".5", "60%", "1.5 g"):
        assert settings.load([*GOOD, "--kv-memory", size]).kv_memory == size
    chosen = settings.load([*GOOD, "--threads", "3", "--kv-memory", "2GiB"])
    assert chosen.engine_config() == EngineConfig(model="m", threads=3, kv_memory="2GiB")
    assert chosen.engine_argv == [sys.executable, "-m", "millstream_worker.engine"]
    assert settings.load([*GOOD, "--engine-command", "run 'my engine'"]).engine_argv == ["run", "my engine"]


def test_a_mistyped_variable_is_told_with_what_was_meant() -> None:
    for variable, meant in (
        ("MILLSTREAM_LEASE", "MILLSTREAM_LEASE_S"),
        ("MILLSTREAM_REDISURL", "MILLSTREAM_REDIS_URL"),
        ("MILLSTREAM_MODEL_", "MILLSTREAM_MODEL"),
        ("MILLSTREAM_SERVER_CHCK", "MILLSTREAM_SERVER_CHECK"),
        ("millstream_shard", "MILLSTREAM_SHARDS"),
    ):
        [line] = settings.mistyped({variable: "1", "PATH": "/bin"})
        assert line == f"{variable} is not a setting and has no effect; did you mean {meant}?"


def test_variables_of_others_are_left_alone() -> None:
    names = ("MODEL", "HOME", "REDIS_PORT", "PORT", "SERVICE_HOST", "PORT_6379_TCP_ADDR")
    assert settings.mistyped({f"MILLSTREAM_{name}": "1" for name in names}) == []
