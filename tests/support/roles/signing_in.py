"""Clients that sign in with a role, and what the server has refused to them."""

from __future__ import annotations

from dataclasses import replace

from millstream import AsyncClient
from millstream.client.session.options import ClientOptions
from support.servers.secured import SecuredServer

LOOKS_AT_SETTINGS = ("worker", "command", "config|get")  # it says that it could not, and goes on


def refusals(server: SecuredServer) -> list[tuple[str, str, str]]:
    return [entry for entry in server.denied() if entry != LOOKS_AT_SETTINGS]


def signed_in(server: SecuredServer, role: str, options: ClientOptions | None = None) -> AsyncClient:
    """Its connections have the role's name."""
    return AsyncClient(server.login(role), options=replace(options or ClientOptions(), name=role))
