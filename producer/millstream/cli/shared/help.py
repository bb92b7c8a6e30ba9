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


def _plain(params: list[Any]) -> list[Any]:
    """typer creates the parameters, and has no setting for this."""
    for param in params:
        if isinstance(param, TyperArgument) or (isinstance(param, TyperOption) and param.is_flag):
            param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
    return params
