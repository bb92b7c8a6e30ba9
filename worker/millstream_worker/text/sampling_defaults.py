"""Reads the sampling defaults of a checkpoint, its generation_config.json, and fills them into requests that
leave parameters unset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.sampling import DEFAULTED, SamplingParams

_log = structlog.get_logger(__name__)
_FILE = "generation_config.json"
_NAMES = {**dict.fromkeys(DEFAULTED), "max_new_tokens": "max_tokens"}  # None: the same in requests
_OF_DRAWS = ("top_p", "top_k", "min_p")  # without effect on greedy sampling


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """`values`: by the names of requests, and within their bounds."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str) -> SamplingDefaults:
        """Those of a folder; none where it has no such file. A value that no request could have is passed
        over, with a warning.
        """
        try:
            said = json.loads(Path(folder, _FILE).read_bytes())
        except FileNotFoundError:
            return cls()
        except (ValueError, OSError) as error:
            _log.warning("sampling defaults cannot be read", file=_FILE, problem=str(error))
            return cls()
        given = (
            {own or name: said.get(name) for name, own in _NAMES.items()} if isinstance(said, dict) else {}
        )
        checked = {name: _checked(name, value) for name, value in given.items() if value is not None}
        values = {name: value for name, value in checked.items() if value is not None}
        if values:
            _log.info("sampling defaults are read", file=_FILE, **values)
        return cls(values)

    def fill(self, request: Request) -> tuple[Request, dict[str, Any]]:
        """The request with the defaults of what it leaves unset, and these. `max_tokens` stays unset in it: a
        default is no demand that a longer prompt could fail.
        """
        asked = request.sampling
        said = {name for name in asked.model_fields_set if getattr(asked, name) is not None}
        filled = {name: value for name, value in self.values.items() if name not in said}
        if asked.model_copy(update=filled).temperature == 0:
            filled = {name: value for name, value in filled.items() if name not in _OF_DRAWS}
        if filled.get("max_tokens", asked.min_tokens) < asked.min_tokens:
            del filled["max_tokens"]
        sampling = {name: value for name, value in filled.items() if name != "max_tokens"}
        if sampling:
            request = request.model_copy(update={"sampling": asked.model_copy(update=sampling)})
        return request, filled


NO_DEFAULTS = SamplingDefaults()


def _checked(name: str, value: Any) -> Any:
    """None for a value that no request could have, and for one that changes nothing."""
    try:
        checked = getattr(SamplingParams.model_validate({name: value}, strict=True), name)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        given = f"{value!r:.100}"
        _log.warning(
            "sampling default is ignored: no request may have it",
            file=_FILE,
            name=name,
            value=given,
            problem=problem,
        )
        return None
    return None if checked == SamplingParams.model_fields[name].default else checked
