"""Renders chat templates with what transformers gives them, each rendering within a budget: loops, calls,
operators, filters and outputs are counted, and what could make more of its operands than their sum is
estimated before it is done.
"""

from __future__ import annotations

import contextlib
import json
import operator
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import reduce, wraps
from itertools import islice
from string import Formatter
from types import BuiltinMethodType
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from millstream_worker.text.render_budget import RenderBudget, TemplateTooMuch

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
        self.filters["tojson"] = _to_json
        for name, function in list(self.filters.items()):
            if name not in _LINEAR_FILTERS:
                self.filters[name] = self._counted(name, function)
        self.filters |= {"_passes": self._passes, "_joined": self._joined, "_added": self._added}
        self.globals |= {
            "dict": DictMaker(),
            "namespace": TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _now,
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
            tree = _Guards().visit(self.parse(source))
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


class _Guards(NodeTransformer):
    """Has loops, concatenations and additions counted."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        written = sum(len(one.data) for one in node.find_all(nodes.TemplateData))
        written += sum(len(one.value) for one in node.find_all(nodes.Const) if isinstance(one.value, str))
        node.iter = _filter("_passes", node.iter, [nodes.Const(written)], node.lineno)
        for call in node.find_all(nodes.Call) if node.recursive else ():
            if isinstance(call.node, nodes.Name) and call.node.name == "loop" and call.args:
                call.args[0] = _filter("_passes", call.args[0], [nodes.Const(written)], call.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter("_joined", node.nodes[0], node.nodes[1:], node.lineno)

    def visit_Add(self, node: nodes.Add) -> nodes.Expr:
        """Many in a row are one: templates put texts together so."""
        self.generic_visit(node)
        left, right = node.left, node.right
        if isinstance(left, nodes.Const) and isinstance(right, nodes.Const):
            return node
        if isinstance(left, nodes.Filter) and left.name == "_added":
            left.args.append(right)
            return left
        return _filter("_added", left, [right], node.lineno)


class GenerationBlocks(Extension):
    """`{% generation %}`, which marks answers for those who train models: here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - so declared in the base class

    def parse(self, parser: Parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class DictMaker:
    """`dict`, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class TemplateNamespace(Namespace):
    """`namespace`, without names by which Python's own attributes could be reached. Its text is short, even
    if it is in itself.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be a name in it
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _filter(name: str, node: nodes.Node, args: list[nodes.Expr], line: int) -> nodes.Filter:
    return nodes.Filter(node, name, args, [], None, None, lineno=line)


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


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no names that begin with an underscore, as {name!r} does")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the local date, as in transformers


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Without HTML's escapes, unlike Jinja's own."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
