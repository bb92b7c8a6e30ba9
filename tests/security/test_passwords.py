"""A server's password stands in its URL and nowhere else: not in errors about that, not in any log."""

from __future__ import annotations

import logging

import pytest
from support.commands import invoke, process
from support.servers.secured import SecuredServer
from support.workers.counting_worker import counted, until
from support.workers.work import Work, outcome, rest_of

from millstream import AsyncClient, InvalidRequest, JobFailed
from millstream.wire.connection import Endpoint
from millstream_worker import settings

SECRET = "zqsecret"
MARK = "zqmark"
URLS = [
    f"http://user:{SECRET}@host",
    f"user:{SECRET}@host:6379",
    f"redis://user:{SECRET}/x{SECRET}@host:6379",
    f"redis://user:{SECRET}@{SECRET}@host:nine",
    f"redis://user:{SECRET}?{SECRET}#{SECRET}@host:6379",
    f"redis://user:{SECRET}@host:6379/0?socket_timeout=1",
    f"redis://host:6379/0?password={SECRET}&retry_on_timeout=1",
    f"rediss://user:{SECRET}@host:6379/0?ssl_ca_certs=/nowhere/ca.pem",
    f"redis+sentinel://user:{SECRET}@a:1,b:2?sentinel_password={SECRET}",
    f"redis+cluster://user:{SECRET}@a:1,b:x",
]


@pytest.mark.parametrize("url", URLS)
def test_an_error_about_a_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(InvalidRequest) as failed:
        Endpoint.of(url)
    assert SECRET not in str(failed.value)
    assert SECRET not in str(failed.value.value)
    with pytest.raises(settings.BadSettings) as refused:
        settings.load(["--model", "m", "--redis-url", url])
    assert SECRET not in str(refused.value)


async def test_a_client_logs_neither_passwords_nor_payloads(
    secured: SecuredServer, role_work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    role_work.hold(3)
    async with AsyncClient(secured.login("producer")) as client, role_work():
        job = await client.submit(f"w7 {MARK}", max_tokens=6, stream=True, tenant=MARK)
        events = client.stream(job.id)
        text = (await anext(events)).text
        with secured.as_admin() as admin:
            admin.client_kill_filter(_type="pubsub")
            await until(lambda: "interrupted" in caplog.text)
        role_work.go(3)
        assert text + await rest_of(events) == counted(1, 6)  # the unknown word is w0
        with pytest.raises(JobFailed):
            await outcome(client, f"{MARK} " * 600, 1)
    told = caplog.text
    assert [word for word in (MARK, *secured.passwords.values()) if word in told] == []


def test_the_command_line_tells_answers_and_nothing_else(secured: SecuredServer) -> None:
    url = secured.login("producer")
    done = invoke("submit", f"w7 {MARK}", "--tenant", MARK, "--redis-url", url)
    assert done.exit_code == 0, done.output
    job_id = done.stdout.split()[-1]
    for arguments in (["status", job_id], ["result", job_id], ["cancel", job_id], ["result", job_id]):
        told = invoke(*arguments, "--redis-url", url).output
        assert MARK not in told
        assert secured.passwords["producer"] not in told


def test_a_server_that_is_gone_is_named_without_its_password(secured: SecuredServer) -> None:
    """By a process: what its log and its last words show counts, too."""
    url = secured.login("producer").replace(str(secured.port), "1")
    with process("submit", f"w7 {MARK}", "--redis-url", url) as running:
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 3
    assert "127.0.0.1:1" in errors
    assert secured.passwords["producer"] not in errors
    assert MARK not in errors
