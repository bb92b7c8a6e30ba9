"""Types of Python's standard library that pydantic takes as fields: by name, the type and a value of it."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import pathlib
import re
import uuid
import zoneinfo
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypeVar

from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

T = TypeVar("T")
Color = enum.Enum("Color", {"RED": "red", "BLUE": "blue"})
Rank = enum.IntEnum("Rank", {"LOW": 1, "HIGH": 2})
Word = enum.StrEnum("Word", {"YES": "yes", "NO": "no"})
Right = enum.IntFlag("Right", {"READ": 1, "WRITE": 2})
Name = NewType("Name", str)
Many = TypeAliasType("Many", list[int])
Tree = TypeAliasType("Tree", "dict[str, Tree] | int")


class Point(NamedTuple):
    x: int
    y: int = 0


class Film(TypedDict):
    title: str
    year: NotRequired[int]


class ClosedFilm(TypedDict):
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - pydantic reads it so
    title: str


class PartFilm(TypedDict, total=False):
    title: str


@dataclass
class House:
    street: str
    number: int = 1


@dataclass
class Link:
    value: int
    after: Link | None = None


@dataclass
class Box(Generic[T]):
    content: T


Plain = {
    "str": (str, "wind – „mill“"),
    "int": (int, -7),
    "float": (float, 0.5),
    "bool": (bool, True),
    "bytes": (bytes, "abc"),
    "None": (None, None),
    "Any": (Any, {"a": [1]}),
    "object": (object, "x"),
    "Decimal": (Decimal, "1.50"),
    "Fraction": (Fraction, "1/3"),
    "complex": (complex, "1+2j"),
    "NewType": (Name, "x"),
}
Times = {
    "datetime": (datetime.datetime, "2026-01-02T03:04:05Z"),
    "date": (datetime.date, "2026-01-02"),
    "time": (datetime.time, "03:04:05Z"),
    "timedelta": (datetime.timedelta, "P1DT2H"),
    "ZoneInfo": (zoneinfo.ZoneInfo, "UTC"),
}
Places = {
    "UUID": (uuid.UUID, "12345678-1234-4678-8234-567812345678"),
    "Path": (pathlib.Path, "/tmp/x"),
    "PurePosixPath": (pathlib.PurePosixPath, "a/b"),
    "IPv4Address": (ipaddress.IPv4Address, "127.0.0.1"),
    "IPv6Address": (ipaddress.IPv6Address, "::1"),
    "IPv4Interface": (ipaddress.IPv4Interface, "127.0.0.1/8"),
    "IPv6Interface": (ipaddress.IPv6Interface, "::1/64"),
    "IPv4Network": (ipaddress.IPv4Network, "127.0.0.0/8"),
    "IPv6Network": (ipaddress.IPv6Network, "fe80::/64"),
    "Pattern": (re.Pattern[str], "a+"),
}
Choices = {
    "Enum": (Color, "red"),
    "IntEnum": (Rank, 2),
    "StrEnum": (Word, "no"),
    "IntFlag": (Right, 1),
    "Literal of texts": (Literal["a", "b\n"], "b\n"),
    "Literal of several kinds": (Literal["a", 1, True, None], 1),
    "Optional": (int | None, None),
    "Union": (int | str | list[int], [1]),
    "Optional Literal": (Literal["a"] | None, "a"),
}
Collections = {
    "list": (list, [1, "a"]),
    "list[int]": (list[int], [1, 2]),
    "list[list[float]]": (list[list[float]], [[1.5], []]),
    "tuple[int, str]": (tuple[int, str], [1, "a"]),
    "tuple[int, ...]": (tuple[int, ...], [1, 2]),
    "tuple[()]": (tuple[()], []),
    "set[str]": (set[str], ["a"]),
    "set[Literal]": (set[Literal["a", "b"]], ["a"]),
    "set[Enum]": (set[Color], ["red"]),
    "frozenset[int]": (frozenset[int], [1]),
    "deque[int]": (deque[int], [1, 2]),
    "deque of at most 3": (Annotated[deque[int], Field(max_length=3)], [1, 2]),
    "Sequence[str]": (Sequence[str], ["a"]),
    "Iterable[int]": (Iterable[int], [1]),
    "dict": (dict, {"a": 1}),
    "dict[str, int]": (dict[str, int], {"a": 1}),
    "dict[int, str]": (dict[int, str], {"1": "a"}),
    "dict[Literal, int]": (dict[Literal["a", "b"], int], {"b": 1}),
    "dict[Enum, str]": (dict[Color, str], {"red": "x"}),
    "dict[date, float]": (dict[datetime.date, float], {"2026-01-02": 1.5}),
    "dict[UUID, int]": (dict[uuid.UUID, int], {"12345678-1234-4678-8234-567812345678": 1}),
    "dict of a pattern": (dict[Annotated[str, Field(pattern="^x_")], int], {"x_1": 1}),
    "Mapping[str, float]": (Mapping[str, float], {"a": 1.5}),
    "OrderedDict[str, int]": (OrderedDict[str, int], {"a": 1}),
    "alias of a type": (Many, [1]),
    "recursive alias": (Tree, {"a": {"b": 1}}),
}
Records = {
    "NamedTuple": (Point, [1, 2]),
    "TypedDict": (Film, {"title": "x"}),
    "TypedDict, closed": (ClosedFilm, {"title": "x"}),
    "TypedDict, not total": (PartFilm, {}),
    "dataclass": (House, {"street": "x", "number": 2}),
    "dataclass, recursive": (Link, {"value": 1, "after": {"value": 2, "after": None}}),
    "dataclass, generic": (Box[int], {"content": 1}),
}
STANDARD: dict[str, tuple[Any, Any]] = {**Plain, **Times, **Places, **Choices, **Collections, **Records}
