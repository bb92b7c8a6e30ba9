"""The endpoints that generate, by their paths."""

from __future__ import annotations

from enum import StrEnum


class ApiEndpoint(StrEnum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
