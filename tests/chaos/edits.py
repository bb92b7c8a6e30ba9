"""Exact replacements of the product's source text, in a Lua file or in one Python function, for this process;
where the text is not there any more, they refuse to apply.
"""

from __future__ import annotations
import __future__

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from millstream.gateway.redis.gateway_calls import GATEWAY
from millstream.wire.calls import scripts
from millstream.wire.calls.scripts import PROTOCOL


class Stale(Exception):
    """The product has changed: the mutant's text is not there exactly once. Mend the mutant."""


@dataclass(frozen=True, slots=True)
class LuaEdit:
    """Of one Lua file, named without its folder unless it is a part, for this process."""

    path: str
    before: str
    after: str

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        expand = scripts._expand
        edits = 0

        def expand_edited(folder: Any, path: str, seen: set[str]) -> str:
            nonlocal edits
            source = expand(folder, path, seen)
            if path == self.path or path.endswith(f"/{self.path}"):
                edits += 1
                return _replaced(source, self.before, self.after, path)
            return source

        scripts._expand = expand_edited
        scripts.script.cache_clear()
        try:
            _ = self.script
            assert edits, f"{self.user} does not include {self.path}"
            yield
        finally:
            scripts._expand = expand
            scripts.script.cache_clear()

    @property
    def script(self) -> scripts.Script:
        package = next(one for one in (PROTOCOL, GATEWAY) if self.user in scripts.script_paths(one))
        return scripts.script(self.user, package)

    @property
    def user(self) -> str:
        """A script that has this file in it."""
        folder, _, name = self.path.rpartition("/")
        return "finish" if folder else name.removesuffix(".lua")


@dataclass(frozen=True, slots=True)
class CodeEdit:
    """Of one Python function, named `module:Class.method`. Whoever has imported it gets the edited one."""

    function: str
    before: str
    after: str

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        function = self.find()
        code = function.__code__
        function.__code__ = self._edited(function)
        try:
            yield
        finally:
            function.__code__ = code

    def find(self) -> FunctionType:
        module, _, path = self.function.partition(":")
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
        assert isinstance(found, FunctionType), f"{self.function} is no plain function"
        return found

    def _edited(self, function: FunctionType) -> Any:
        source = textwrap.dedent(inspect.getsource(function))
        edited = _replaced(source, self.before, self.after, self.function)
        flags = __future__.annotations.compiler_flag
        code = compile(edited, f"<mutant of {self.function}>", "exec", flags, dont_inherit=True)
        scope: dict[str, Any] = {}
        exec(code, function.__globals__, scope)
        mutated: FunctionType = scope[function.__name__]
        return mutated.__code__


def _replaced(source: str, before: str, after: str, place: str) -> str:
    if source.count(before) != 1:
        raise Stale(f"{place} has {source.count(before)} times, not once: {before!r}")
    return source.replace(before, after)
