"""Types of pydantic's own, and models of fields: by name, the type and a value of it."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import pydantic as p
from pydantic import BaseModel, Field, networks

T = TypeVar("T")
UUID = "12345678-1234-{}678-8234-567812345678"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Closed(BaseModel, extra="forbid"):
    """A closed model."""

    yes: bool


class Extra(BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, int]
    a: str


class Node(BaseModel):
    value: int
    nodes: list[Node] = []


class Named(BaseModel):
    first_name: str = Field(alias="firstName", description="first", examples=["Ada"])


class Pair(BaseModel, Generic[T]):
    one: T
    other: T | None = None


class Texts(p.RootModel[list[str]]):
    pass


class Deep(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    home: Closed | None = None
    notes: dict[str, Named] = {}


Bounded = {
    "constr": (p.constr(min_length=2, max_length=5), "abc"),
    "constr, pattern": (p.constr(pattern=r"^[a-z]+\d$"), "ab1"),
    "constr, stripped": (p.constr(strip_whitespace=True, to_lower=True, max_length=9), "abc"),
    "pattern and length": (Annotated[str, Field(pattern="^a", max_length=4)], "abc"),
    "pattern of a part": (Annotated[str, Field(pattern="[0-9]")], "a1b"),
    "conint": (p.conint(ge=1, le=100), 7),
    "conint, multiple_of": (p.conint(multiple_of=5), 15),
    "conint, multiple_of in bounds": (p.conint(multiple_of=5, gt=0, lt=1000), 15),
    "confloat": (p.confloat(gt=0, lt=1.5), 0.5),
    "confloat, multiple_of": (p.confloat(multiple_of=0.5), 1.5),
    "condecimal": (p.condecimal(max_digits=5, decimal_places=2), "1.50"),
    "condecimal, bounds": (Annotated[Decimal, Field(ge=0, le=10)], "1.5"),
    "conbytes": (p.conbytes(max_length=8), "abc"),
    "condate": (p.condate(gt=date(2020, 1, 1)), "2026-01-02"),
    "conlist": (p.conlist(int, min_length=1, max_length=3), [1, 2]),
    "conset": (p.conset(int, max_length=3), [1]),
    "confrozenset": (p.confrozenset(str, min_length=1), ["a"]),
    "dict of at least 1": (Annotated[dict[str, int], Field(min_length=1)], {"a": 1}),
    "dict of at most 3": (Annotated[dict[str, int], Field(max_length=3)], {"a": 1}),
    "dict of 2 to 4": (Annotated[dict[str, int], Field(min_length=2, max_length=4)], {"a": 1, "b": 2}),
    "default": (Annotated[int, Field(default=3, title="n", description="count", examples=[1])], 3),
    "deprecated": (Annotated[int, Field(deprecated=True)], 3),
}
Numbers = {
    name: (getattr(p, name), value)
    for name, value in {
        "PositiveInt": 1, "NegativeInt": -1, "NonNegativeInt": 0, "NonPositiveInt": 0, "PositiveFloat": 1.5,
        "NegativeFloat": -1.5, "NonNegativeFloat": 0.5, "NonPositiveFloat": -0.5, "FiniteFloat": 1.5,
        "StrictInt": 1, "StrictFloat": 1.5, "StrictStr": "x", "StrictBool": True, "StrictBytes": b"x",
    }.items()
}  # fmt: skip
Addresses = {
    name: (getattr(networks, name), value)
    for name, value in {
        "AnyUrl": "ftp://a.b/c", "AnyHttpUrl": "https://a.b/c?d=1", "HttpUrl": "https://a.b/", "FileUrl": "file:///a",
        "FtpUrl": "ftp://a.b/", "WebsocketUrl": "wss://a.b/", "PostgresDsn": "postgres://u:p@h:1/d",
        "RedisDsn": "redis://h:1/0", "EmailStr": "a@example.com", "NameEmail": "A <a@example.com>",
        "IPvAnyAddress": "127.0.0.1", "IPvAnyInterface": "127.0.0.1/8", "IPvAnyNetwork": "127.0.0.0/8",
    }.items()
}  # fmt: skip
Own = {
    **{f"UUID{n}": (getattr(p, f"UUID{n}"), UUID.format(n)) for n in (1, 3, 4, 5, 6, 7, 8)},
    "FilePath": (p.FilePath, __file__),
    "DirectoryPath": (p.DirectoryPath, "/"),
    "NewPath": (p.NewPath, "/not-there"),
    "SecretStr": (p.SecretStr, "x"),
    "SecretBytes": (p.SecretBytes, "x"),
    "Json": (p.Json, "[1]"),
    "Json[list[int]]": (p.Json[list[int]], "[1]"),
    "Base64Bytes": (p.Base64Bytes, "YWJj"),
    "Base64Str": (p.Base64Str, "YWJj"),
    "Base64UrlStr": (p.Base64UrlStr, "YWJj"),
    "ByteSize": (p.ByteSize, 1024),
    "PastDate": (p.PastDate, "2020-01-02"),
    "FutureDatetime": (p.FutureDatetime, "2999-01-02T03:04:05Z"),
    "AwareDatetime": (p.AwareDatetime, "2026-01-02T03:04:05Z"),
    "NaiveDatetime": (p.NaiveDatetime, "2026-01-02T03:04:05"),
    "ImportString": (p.ImportString, "math.floor"),
    "JsonValue": (p.JsonValue, {"a": [1, None]}),
    "OnErrorOmit": (list[p.OnErrorOmit[int]], [1]),
}
Models = {
    "model": (Cat, {"kind": "cat", "lives": 1}),
    "model, closed": (Closed, {"yes": True}),
    "model with more of one kind": (Extra, {"a": "x", "b": 1}),
    "model, recursive": (Node, {"value": 1, "nodes": [{"value": 2, "nodes": []}]}),
    "model with an alias": (Named, {"firstName": "Ada"}),
    "model, generic": (Pair[int], {"one": 1, "other": None}),
    "RootModel": (Texts, ["a"]),
    "models, nested": (Deep, {"pets": [{"kind": "dog", "name": "x"}], "home": None, "notes": {}}),
    "union of models": (Cat | Dog, {"kind": "dog", "name": "x"}),
    "discriminated union": (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "dog", "name": "x"}),
    "list[model]": (list[Closed], [{"yes": True}]),
    "dict[str, model]": (dict[str, Closed], {"a": {"yes": True}}),
    "Optional model": (Closed | None, None),
}
# A schema's date-time has an offset, by RFC 3339.
FORBID_THEIR_VALUE = {"NaiveDatetime"}
OWN: dict[str, tuple[Any, Any]] = {**Bounded, **Numbers, **Addresses, **Own, **Models}
