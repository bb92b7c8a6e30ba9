"""Removes the types of arguments and flags from `--help`: an argument's name is enough, and a flag takes no
value.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption


class HelpCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class HelpGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class _Argument(TyperArgument):
    def display_type_rich(self, ctx: Any) -> None:
        """No type."""


class _Flag(TyperOption):
    def display_type_rich(self, ctx: Any) -> None:
        """No type."""


def _plain(params: list[Any]) -> list[Any]:
    """typer creates the parameters, and has no setting for this."""
    for param in params:
        if isinstance(param, TyperArgument):
            param.__class__ = _Argument
        elif isinstance(param, TyperOption) and param.is_flag:
            param.__class__ = _Flag
    return params
