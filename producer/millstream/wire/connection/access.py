"""Errors by which a server refuses the user, not the command: a retry cannot help, only the operator can."""

from __future__ import annotations

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

# What a script is refused comes without the NOPERM of a refused command.
_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")


def refusal(error: Exception) -> str | None:
    """A message with what was refused and the remedy; None where the error is of another kind."""
    if isinstance(error, AuthenticationError):
        return f"{error}; check the user and the password of the URL"
    if isinstance(error, NoPermissionError) or (
        isinstance(error, ResponseError) and str(error).startswith(_IN_SCRIPT)
    ):
        return f"{error}; give this user the rights of its role (ops/users.acl)"
    return None
