"""Values that transformers gives to chat templates beside the conversation. No way leads from them into
Python's own objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace


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


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the local date, as in transformers


def to_json(
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


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no names that begin with an underscore, as {name!r} does")
