"""The whole table."""

from __future__ import annotations

from conformance.requests.field_rows import CHAT_FIELDS, COMPLETIONS_FIELDS, PROMPTS, SHARED
from conformance.requests.message_rows import CONTENTS, HISTORIES, ROLES
from conformance.requests.sampling_rows import ENDS, SAMPLING, SENT
from conformance.requests.tool_rows import FORMATS, TOOLS

TABLE = (
    *SAMPLING, *ENDS, *SENT, *SHARED, *CHAT_FIELDS, *COMPLETIONS_FIELDS, *PROMPTS, *ROLES, *CONTENTS,
    *HISTORIES, *TOOLS, *FORMATS,
)  # fmt: skip
