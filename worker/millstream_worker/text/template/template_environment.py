"""Renders chat templates with what transformers gives them, each rendering within a budget: loops, calls,
operators, filters and outputs are counted, and what could make more of its operands than their sum is
estimated before it is done.
"""

from __future__ import annotations

import contextlib
import operator
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import reduce, wraps
from itertools import islice
from string import Formatter
from types import BuiltinMethodType
from typing import Any

from jinja2 import Template, pass_context
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from millstream_worker.text.template.render_budget import RenderBudget, TemplateTooMuch
from millstream_worker.text.template.template_syntax import GenerationBlocks, TemplateGuards
from millstream_worker.text.template.template_values import (
    DictMaker,
    TemplateNamespace,
    now,
    raise_exception,
    to_json,
)

_CHUNK = 256  # passes of a loop between two looks at the clock
_MOST_BITS = 4096  # of a number
_VALUES = (str, bytes, int, float, list, tuple, dict)
_SIZED = (str, bytes, list, tuple, dict)
# Methods and filters that make no more of what they are given than is in it.
_LINEAR_METHODS = frozenset((
    "capitalize", "casefold", "copy", "count", "endswith", "find", "get", "index", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "items",
    "keys", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rindex",
    "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title",
    "upper", "values",
))  # fmt: skip
_LINEAR_FILTERS = frozenset((
    "abs", "attr", "capitalize", "count", "d", "default", "first", "float", "int", "items", "last", "length",
    "lower", "map", "max", "min", "reject", "rejectattr", "safe", "select", "selectattr", "title", "trim",
    "truncate", "upper", "wordcount",
))  # fmt: skip
_OF_JINJA = ("_loop_vars", "_block_vars")  # what it adds to the arguments of calls
# Fields of formats whose width is large, or comes from a value.
_WIDE = re.compile(r"%(\([^)]*\))?[^a-zA-Z%]*?(\*|\d{5})")
_WIDE_SPEC = re.compile(r"\{|\d{5}")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Renders in any number of threads."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self) -> None:
        self._local = threading.local()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlocks, loopcontrols],
            finalize=self._put_out,
        )
        self.filters["tojson"] = to_json
        for name, function in list(self.filters.items()):
            if name not in _LINEAR_FILTERS:
                self.filters[name] = self._counted(name, function)
        self.filters |= {"_passes": self._passes, "_joined": self._joined, "_added": self._added}
        self.globals |= {
            "dict": DictMaker(),
            "namespace": TemplateNamespace,
            "raise_exception": raise_exception,
            "strftime_now": now,
        }
        del self.globals["lipsum"]
        self.binop_table |= {"*": self._multiply, "**": self._power, "%": self._modulo}
        self._templates: dict[str, Template] = {}

    def render(self, source: str, variables: Mapping[str, Any], input_size: int) -> str:
        """Returns the text. Raises TemplateTooMuch, and what templates raise."""
        self._local.budget = RenderBudget(input_size)
        try:
            return self._template(source).render(variables)
        except MemoryError as error:
            raise TemplateTooMuch("takes too much memory") from error

    def _template(self, source: str) -> Template:
        template = self._templates.get(source)
        if template is None:
            tree = TemplateGuards().visit(self.parse(source))
            tree.set_environment(self)
            template = Template.from_code(self, self.compile(tree), self.make_globals(None))
            self._templates[source] = template
        return template

    @property
    def _budget(self) -> RenderBudget:
        budget: RenderBudget = self._local.budget
        return budget

    def _put_out(self, value: Any) -> Any:
        budget = self._local.budget
        budget.take(len(value) if type(value) is str else budget.size(value))
        return value

    @pass_context  # whose result is not computed when the template is compiled
    def _passes(self, context: Context, items: Any, written: int) -> Any:
        """Returns the items of a loop. `written`: characters of the template in its body."""
        try:
            count = len(items)
        except TypeError:
            items = list(items)
            count = len(items)
        self._budget.take(count * (1 + written))
        return items if count <= _CHUNK else LongLoop(items, self._budget)

    @pass_context
    def _joined(self, context: Context, *parts: Any) -> str:
        budget = self._budget
        budget.take_joined([*map(budget.size, parts)])
        return "".join(map(str, parts))

    @pass_context
    def _added(self, context: Context, *parts: Any) -> Any:
        try:
            self._budget.take_joined([*map(len, parts)])
            return "".join(parts)
        except TypeError:  # lists, or numbers
            return reduce(operator.add, parts)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, whose work is estimated first."""
        passed = getattr(function, "jinja_pass_arg", None)

        @wraps(function)
        def run(context: Context, value: Any = None, /, *args: Any, **kwargs: Any) -> Any:
            value, *others = map(_held, (value, *args))
            self._budget.check(self._estimate(name, value, (*others, *kwargs.values())))
            own = {"context": context, "eval_context": context.eval_ctx, "environment": self}
            before = () if passed is None else (own[passed.name],)
            return self._taken(function(*before, value, *others, **kwargs))

        return pass_context(run)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call of anything. Raises TemplateTooMuch."""
        own = {name: kwargs.pop(name) for name in _OF_JINJA if name in kwargs}
        if type(called) is BuiltinMethodType and called.__name__ in _LINEAR_METHODS:
            return self._taken(called(*args, **kwargs))
        method = getattr(called, "__wrapped__", called)  # `format` is the sandbox' own
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, _VALUES):
            args = tuple(map(_held, args))
            self._budget.check(self._estimate(name, owner, (*args, *kwargs.values())))
        return self._taken(super().call(context, called, *args, **kwargs, **own))

    def _taken(self, result: Any) -> Any:
        self._budget.take(len(result) if isinstance(result, _SIZED) else 1)
        return result

    def _estimate(self, name: str, owner: Any, args: tuple[Any, ...]) -> int:
        """Characters that a method or filter of this name makes at most; 0 for what it will refuse."""
        size = self._budget.size
        match name, owner, args:
            case "replace", str(), (str(old), str(new), *_):
                return len(owner) + owner.count(old) * len(new)
            case "join", str(), (parts,):  # the method
                return size(parts) + len(owner) * _count(parts)
            case "join", _, (str(between), *_):  # the filter
                return size(owner) + len(between) * _count(owner)
            case "format" | "format_map", str(), _:
                return self._formatted(owner, args)
        product = size(owner) + 1
        for one in args:
            product *= max(1, abs(one)) if isinstance(one, int) else size(one) + 1
        return product

    def _formatted(self, text: str, values: Any) -> int:
        """Characters of a format with these values."""
        if _WIDE.search(text) or any(_WIDE_SPEC.search(spec or "") for _, _, spec, _ in _fields(text)):
            raise TemplateTooMuch("pads a text to a width that is large, or not known")
        fields = text.count("%") + text.count("{")
        return len(text) + fields * (9999 + self._budget.size(values))

    def _multiply(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        else:
            for one, times in ((left, right), (right, left)):
                if isinstance(one, _SIZED) and isinstance(times, int):
                    self._budget.check(len(one) * times)
        return self._taken(left * right)

    def _power(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right)
        return left**right

    def _modulo(self, left: Any, right: Any) -> Any:
        if isinstance(left, (str, bytes)):
            self._budget.check(self._formatted(str(left), right))
        return self._taken(operator.mod(left, right))


class LongLoop:
    """Items of a loop that looks at the clock as it goes on."""

    __slots__ = ("_budget", "_items")

    def __init__(self, items: Any, budget: RenderBudget) -> None:
        self._items = items
        self._budget = budget

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        rest = iter(self._items)
        while chunk := list(islice(rest, _CHUNK)):
            self._budget.look()
            yield from chunk


def _fields(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    with contextlib.suppress(ValueError):  # no format for `format`
        return list(Formatter().parse(text))
    return []


def _held(value: Any) -> Any:
    """A list of what can be gone through only once, to know its size."""
    return list(value) if isinstance(value, Iterator) else value


def _count(parts: Any) -> int:
    with contextlib.suppress(TypeError):
        return len(parts)
    return 0


def _check_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise TemplateTooMuch(f"computes a number of more than {_MOST_BITS} bits")
