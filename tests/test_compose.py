"""compose.yaml without Docker: every service's command and health check run here as they stand,
with the container's paths, names and ports replaced by this machine's.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
import yaml
from support.commands import invoke
from support.models import checkpoints
from support.servers.secured import ROLES, make_acl, variable
from support.servers.servers import binary, free_port
from support.workers.counting_worker import write_tokenizer

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BIN = Path(sys.executable).parent


def entrypoint(service: str) -> list[str]:
    """The command as the container runs it: the image's ENTRYPOINT, then the service's command."""
    build = SERVICES[service].get("build")
    if build is None:
        return list(SERVICES[service]["command"])
    dockerfile = (ROOT / build["context"] / build["dockerfile"]).read_text()
    line = next(line for line in dockerfile.splitlines() if line.startswith("ENTRYPOINT"))
    return [*json.loads(line.removeprefix("ENTRYPOINT")), *SERVICES[service]["command"]]


def seconds(duration: str) -> float:
    assert duration.endswith("s"), duration
    return float(duration[:-1])


def here(words: list[str], replaced: Mapping[str, str]) -> list[str]:
    for old, new in replaced.items():
        words = [word.replace(old, new) for word in words]
    return words


def is_healthy(service: str, replaced: Mapping[str, str], *, logged_in: bool = True) -> bool:
    kind, *check = SERVICES[service]["healthcheck"]["test"]
    assert kind == "CMD"
    own = environment_of(service, replaced) if logged_in else {}
    done = subprocess.run(here(check, replaced), env=os.environ | own, capture_output=True, timeout=20)
    return done.returncode == 0


def until_healthy(service: str, replaced: Mapping[str, str], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 90
    while not is_healthy(service, replaced):
        assert process.poll() is None, f"{service} ended with {process.returncode}"
        assert time.monotonic() < until, f"{service} does not become healthy"
        time.sleep(0.1)


@contextlib.contextmanager
def running(
    service: str, command: list[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """SIGTERM at the end; it has to go by itself, without an error, within its grace period."""
    process = subprocess.Popen(command, env=os.environ | dict(environment), start_new_session=True)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=seconds(SERVICES[service]["stop_grace_period"])) == 0
    finally:
        process.kill()
        process.wait(timeout=15)


def environment_of(service: str, replaced: Mapping[str, str]) -> dict[str, str]:
    given = SERVICES[service].get("environment", {})
    return dict(zip(given, here(list(given.values()), replaced), strict=True))


def with_roles(services: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """As with `-f compose.yaml -f ops/deploy/compose.acl.yaml`: lists of mounts and environments are joined,
    all else is replaced.
    """
    over: dict[str, dict[str, Any]] = yaml.safe_load(
        (ROOT / "ops" / "deploy" / "compose.acl.yaml").read_text()
    )["services"]
    merged = {name: dict(service) for name, service in services.items()}
    for name, changed in over.items():
        for key, value in changed.items():
            match merged[name].get(key), value:
                case dict(before), dict(new):
                    merged[name][key] = before | new
                case list(before), list(new) if key == "volumes":
                    merged[name][key] = before + new
                case _:
                    merged[name][key] = value
    return merged


@pytest.fixture(params=["open", "with roles"])
def stack(request: pytest.FixtureRequest) -> Iterator[dict[str, dict[str, Any]]]:
    """The services as compose has them, also for this module's readers of SERVICES."""
    before = dict(SERVICES)
    if request.param == "with roles":
        SERVICES.update(with_roles(SERVICES))
    yield SERVICES
    SERVICES.update(before)


@pytest.mark.slow
def test_the_stack_works(stack: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    cli = shutil.which("valkey-cli") or shutil.which("redis-cli")
    if cli is None and os.environ.get("CI") != "true":
        pytest.skip("neither valkey-cli nor redis-cli is on the PATH")
    assert cli is not None
    port, metrics_port = str(free_port()), str(free_port())
    model = write_tokenizer(checkpoints.build("llama", tmp_path, max_position_embeddings=256))
    (tmp_path / "data").mkdir()
    body = {"prompt": "w1 w2", "max_tokens": 3, "temperature": 0}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    documents = "".join(json.dumps({"custom_id": f"row-{n}", **line}) + "\n" for n in range(3))
    (tmp_path / "documents.jsonl").write_text(documents)
    passwords = {role: secrets.token_hex(16) for role in ROLES}
    (tmp_path / "users.acl").write_text(make_acl(passwords).stdout)
    replaced = {
        **{f"${{{variable(role)}:?set it in .env}}": word for role, word in passwords.items()},
        "valkey-server": str(binary("valkey")),
        "valkey-cli": cli,
        "/etc/millstream/redis.conf": str(ROOT / "ops" / "deploy" / "redis.conf"),
        "/etc/millstream/users.acl": str(tmp_path / "users.acl"),
        "@redis:6379": f"@127.0.0.1:{port}",
        "redis://redis:6379": f"redis://127.0.0.1:{port}",
        "6379": port,
        "9400": metrics_port,
        "/documents/": f"{tmp_path}/",
        "/data/": f"{tmp_path}/data/",
        "${MILLSTREAM_MODEL:-HuggingFaceTB/SmolLM2-135M-Instruct}": str(model),
    }
    secured = "--aclfile" in stack["redis"]["command"]
    flags = ["--port", port, "--dir", str(tmp_path), "--bind", "127.0.0.1"]
    with running("redis", [*here(entrypoint("redis"), replaced), *flags], {}) as server:
        until_healthy("redis", replaced, server)
        login = {"username": "admin", "password": passwords["admin"]} if secured else {}
        with contextlib.closing(redis.Redis(port=int(port), **login)) as client:
            assert client.config_get("appendonly")["appendonly"] == "yes"
            assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        if secured:
            with contextlib.closing(redis.Redis(port=int(port))) as client:
                with pytest.raises(redis.AuthenticationError):
                    client.ping()
            assert not is_healthy("redis", replaced, logged_in=False)
        worker = here(entrypoint("worker-cpu"), {"millstream-worker": str(BIN / "millstream-worker")})
        environment = environment_of("worker-cpu", replaced) | {"MILLSTREAM_KV_MEMORY": "4MiB"}
        with running("worker-cpu", worker, environment) as process:
            until_healthy("worker-cpu", replaced | {"python": sys.executable}, process)
            try_gateway(stack, replaced, passwords["admin"] if secured else "", port)
            producer = here(entrypoint("producer"), {"millstream": str(BIN / "millstream")} | replaced)
            subprocess.run(
                producer, env=os.environ | environment_of("producer", replaced), check=True, timeout=60
            )
    answers = [json.loads(row) for row in (tmp_path / "data" / "results.jsonl").read_text().splitlines()]
    assert {row["custom_id"] for row in answers} == {"row-0", "row-1", "row-2"}
    assert all(row["response"]["body"]["usage"]["completion_tokens"] == 3 for row in answers)


def try_gateway(stack: dict[str, dict[str, Any]], replaced: dict[str, str], password: str, port: str) -> None:
    """It starts once there is a key, and shows the worker's queue."""
    login = f"admin:{password}@" if password else ""
    made = invoke("keys", "add", "acme", "--redis-url", f"redis://{login}127.0.0.1:{port}/0")
    own = replaced | {
        "8000": str(free_port()),
        "python": sys.executable,
        "millstream": str(BIN / "millstream"),
    }
    command = here(entrypoint("gateway"), {"millstream": str(BIN / "millstream")})
    environment = dict(environment_of("gateway", own))
    environment["MILLSTREAM_REDIS_URL"] = environment_of("gateway", replaced)["MILLSTREAM_REDIS_URL"]
    with running("gateway", command, environment) as process:
        until_healthy("gateway", {"8000": own["8000"], "python": sys.executable}, process)
        url = f"http://127.0.0.1:{own['8000']}/v1"
        with openai.OpenAI(base_url=url, api_key=made.stdout.strip()) as client:
            assert [one.id for one in client.models.list()] == ["default"]


def test_the_acl_compose_file_has_the_same_services_as_the_stack() -> None:
    over = yaml.safe_load((ROOT / "ops" / "deploy" / "compose.acl.yaml").read_text())["services"]
    assert set(over) == set(SERVICES)


@pytest.mark.parametrize("service", ["worker-cpu", "worker-gpu"])
def test_a_worker_has_time_to_drain_and_settings_that_there_are(service: str) -> None:
    from millstream_worker.settings import PREFIX, Settings

    environment = SERVICES[service]["environment"]
    assert float(environment["MILLSTREAM_GRACE_S"]) < seconds(SERVICES[service]["stop_grace_period"])
    assert SERVICES[service]["depends_on"]["redis"]["condition"] == "service_healthy"
    assert {name.removeprefix(PREFIX).lower() for name in environment} <= set(Settings.model_fields)


def test_profiles_start_the_right_services_and_reserve_a_gpu() -> None:
    devices = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices[0]["capabilities"] == ["gpu"]
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    expected = {
        "redis": None,
        "worker-cpu": ["cpu"],
        "worker-gpu": ["gpu"],
        "producer": ["example"],
        "gateway": ["gateway"],
    }
    assert profiles == expected


def test_every_mounted_and_built_file_is_there() -> None:
    named = set()
    for service in SERVICES.values():
        sources = [volume.partition(":")[0] for volume in service.get("volumes", [])]
        named |= {source for source in sources if source.startswith(".")}
        if build := service.get("build"):
            named.add(build["dockerfile"])
    assert [name for name in named if not (ROOT / name).exists()] == []
    volumes = {v.partition(":")[0] for s in SERVICES.values() for v in s.get("volumes", [])}
    assert {volume for volume in volumes if not volume.startswith(".")} == set(COMPOSE["volumes"])
