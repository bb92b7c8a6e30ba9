"""Who may call without a key: programs on this machine, and web pages whose origin the operator named.

By its connection a proxy beside the gateway would be such a program, for the world behind it; and so would
any web page in a browser here, by a name of this machine or by its own, led here (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers

from millstream.gateway.gateway_settings import is_loopback
from millstream.openai.api_error import ApiError

_HOST = re.compile(
    r"(?:\[(?P<literal>[0-9a-f:.]+)\]|(?P<name>[0-9a-z._-]+))(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII | re.IGNORECASE,
)
_LAST_PORT = 65_535
_OF_PROXIES = ("forwarded", "via", "x-real-ip")
_PREFIX_OF_PROXIES = "x-forwarded-"
_OWN_SITES = {"same-origin", "none"}  # none: typed by the user
_REMEDY = "make a key with `millstream keys add`"
_SHOWN = 100  # characters of a header, in messages


class OpenDoor:
    """`origins`: of web pages that may call, as browsers send them."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def check(self, headers: Headers) -> None:
        """Raises ApiError 403 for a request that came through a proxy, to another name than loopback's, or
        from a web page.
        """
        for name in headers:
            if name in _OF_PROXIES or name.startswith(_PREFIX_OF_PROXIES):
                raise _refusal(f"it takes nothing from a proxy, which sent {name[:_SHOWN]!r}; {_REMEDY}")
        host = ", ".join(headers.getlist("host"))
        if not is_loopback(_name_of(host)):
            raise _refusal(f"it is called as localhost, not as {host[:_SHOWN]!r}; do so, or {_REMEDY}")
        origins = set(headers.getlist("origin"))
        if foreign := origins - self._origins - {f"http://{host.lower()}"}:
            raise _refusal(_of_page(min(foreign)))
        sites = set(headers.getlist("sec-fetch-site"))
        if sites - _OWN_SITES and not origins & self._origins:
            raise _refusal(_of_page("another site"))


def _name_of(host: str) -> str:
    """The name or address in a Host header, in lower case; empty if the header is not exactly that."""
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > _LAST_PORT:
        return ""
    if (literal := found["literal"]) is None:
        return found["name"].lower()
    try:
        return str(ipaddress.IPv6Address(literal))
    except ValueError:
        return ""


def _of_page(origin: str) -> str:
    return f"it takes nothing from web pages of {origin[:_SHOWN]!r}; give --allow-origin, or {_REMEDY}"


def _refusal(problem: str) -> ApiError:
    return ApiError(403, f"without API keys {problem}", "no_api_keys")
