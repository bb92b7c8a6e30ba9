"""Values that nobody expects, as plain Python: what is drawn can be written down and read again. `plain` ones
msgpack can carry; `wild` ones only a Python caller or a JSON line can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

INTEGERS = (
    0, 1, -1, 2, 7, 15, 16, 17, 64, 127, 128, 255, 256, 999, 1000, 1023, 1024, 4096, 65_535, 65_536,
    2**24, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 - 1, 2**53, 2**63 - 1, -(2**63), 2**64 - 1,
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 10.0, 10.1, 100.0, 1e-5, 1e-9, 1e-300, 5e-324, 1e300, 1e308,
    1.7976931348623157e308, math.inf, -math.inf, math.nan, 0.1 + 0.2, 2.0**31, 2.0**53,
)  # fmt: skip
TEXTS = (
    "", "a", " ", "w1 w2 w3", "0", "-1", "1", "1.0", "1e309", "NaN", "Infinity", "null", "true", "None",
    "é", "😀", "\u2028", "\x00", "\n", "\r\n", "\x1b[2J", "\x7f", "\ufeff", "\ufffd", "١٢", "²", "½", "Ⅷ",
    "1_0", "+1", " 1 ", "0-a", "0-", "-a", "1-1", "0@1-1", "{", "}", "{{ 7*7 }}", "{% for %}", "%s%n",
    "../../etc/passwd", "a b", "[bold]", "stop", "batch", "interactive", "queued", "completed", "failed",
    "system", "user", "assistant", "<0x41>", "<|endoftext|>", "\u202e", "e\u0301", "ß", "ﬁ", "İ", "x" * 200,
    "x" * 201, "x" * 513, "9" * 20, "9" * 41,
)  # fmt: skip
LONG_TEXTS = ("9" * 5000, "x" * 5000, "w1 " * 2000, "😀" * 1500, "[" * 3000, "0." + "9" * 4500)
WILD_TEXTS = ("\ud800", "a\udfffb", "\ud83d", "\udce9")  # halves of surrogate pairs
WILD_INTEGERS = (2**64, -(2**63) - 1, 10**30, -(10**400), 10**5000)


def plain(chance: Random, depth: int = 2) -> Any:
    """Any value that a msgpack message may hold."""
    match chance.randrange(9 if depth else 7):
        case 0:
            return integer(chance)
        case 1:
            return chance.choice(FLOATS)
        case 2 | 3:
            return text(chance)
        case 4:
            return blob(chance)
        case 5:
            return chance.choice((None, True, False))
        case 6:
            return chance.choice(((), [], {}, "", b""))
        case 7:
            return [plain(chance, depth - 1) for _ in range(chance.randrange(4))]
        case _:
            return {text(chance): plain(chance, depth - 1) for _ in range(chance.randrange(4))}


def wild(chance: Random, depth: int = 2) -> Any:
    """Any value that a caller may give."""
    match chance.randrange(12):
        case 0:
            return chance.choice(WILD_INTEGERS)
        case 1:
            return chance.choice(WILD_TEXTS)
        case 2 if depth:
            return {plain_key(chance): wild(chance, depth - 1) for _ in range(chance.randrange(4))}
        case 3 if depth:
            return tuple(wild(chance, depth - 1) for _ in range(chance.randrange(4)))
        case _:
            return plain(chance, depth)


def jsonable(chance: Random, depth: int = 2) -> Any:
    """Any value that a JSON line may hold."""
    match chance.randrange(8 if depth else 6):
        case 0:
            return chance.choice(INTEGERS if chance.random() < 0.9 else (2**64, 10**30, -(10**400)))
        case 1:
            return chance.choice(FLOATS)
        case 2 | 3:
            return text(chance) if chance.random() < 0.9 else chance.choice(WILD_TEXTS)
        case 4:
            return chance.choice((None, True, False))
        case 5:
            return chance.choice(([], {}, "", 0))
        case 6:
            return [jsonable(chance, depth - 1) for _ in range(chance.randrange(4))]
        case _:
            return {text(chance): jsonable(chance, depth - 1) for _ in range(chance.randrange(4))}


def plain_key(chance: Random) -> Any:
    return chance.choice((text(chance), integer(chance), None, True, 1.5, b"x"))


def integer(chance: Random) -> int:
    if chance.random() < 0.6:
        return chance.choice(INTEGERS)
    return chance.randrange(-1000, 10_000)


def text(chance: Random) -> str:
    shape = chance.random()
    if shape < 0.6:
        return chance.choice(TEXTS)
    if shape < 0.63:
        return chance.choice(LONG_TEXTS)
    if shape < 0.8:
        return " ".join(f"w{chance.randrange(1100)}" for _ in range(chance.randrange(1, 6)))
    letters = (chr(letter) for letter in (chance.randrange(0x250) for _ in range(chance.randrange(12))))
    return "".join(letters)


def blob(chance: Random) -> bytes:
    """Raw bytes, mostly few."""
    return chance.randbytes(chance.choice((0, 1, 2, 3, 8, 20, 60, 300)))


def some(chance: Random, make: Callable[[Random], T], most: int = 4) -> list[T]:
    return [make(chance) for _ in range(chance.randrange(most + 1))]


def subset(chance: Random, fields: dict[str, Any], share: float) -> dict[str, Any]:
    """Each of the fields with this probability."""
    return {name: value for name, value in fields.items() if chance.random() < share}


def weighted(chance: Random, *pairs: tuple[float, Callable[[Random], T]]) -> T:
    """What one of these makes, by their weights."""
    makers: Sequence[Callable[[Random], T]] = [make for _, make in pairs]
    [make] = chance.choices(makers, [weight for weight, _ in pairs])
    return make(chance)
