"""Errors by which a server refuses the user, not the command: retries cannot help, only the operator can."""

from __future__ import annotations

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

# Refusals inside of scripts come without the NOPERM of a refused command.
_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")


def refusal(error: Exception) -> str | None:
    """A message with the refused right and the remedy; None for any other error."""
    if isinstance(error, AuthenticationError):
        return f"{error}; check the user and the password of the URL"
    if isinstance(error, NoPermissionError) or (
        isinstance(error, ResponseError) and str(error).startswith(_IN_SCRIPT)
    ):
        return f"{error}; give this user the rights of its role (ops/deploy/users.acl)"
    return None
