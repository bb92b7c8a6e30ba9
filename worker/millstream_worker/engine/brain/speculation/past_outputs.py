"""The outputs of rows that have ended, by kind of job: rows of one tenant with the same grammar whose prompts
begin alike. Bounded, and separate for each tenant: the speed of an answer would reveal another tenant's text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.speculation.token_index import END, LONGEST_MATCH, TokenIndex

_KINDS = 64  # those used last
_TOKENS = 16_384  # of a kind; at most twice as many until the older half goes
_ALIKE = 64  # first tokens of a prompt


class PastOutputs:
    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, TokenIndex] = OrderedDict()

    def add(self, row: Row) -> None:
        kind = _kind(row)
        index = self._kinds.setdefault(kind, TokenIndex())
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        # with the end of the prompt, so that an output is found by its beginning
        index.extend([*row.origin.request.prompt[-LONGEST_MATCH:], *row.output, END])
        if len(index.tokens) > 2 * _TOKENS:
            self._kinds[kind] = newest = TokenIndex()
            newest.extend(index.tokens[-_TOKENS:])

    def of(self, row: Row) -> TokenIndex | None:
        return self._kinds.get(_kind(row))


def _kind(row: Row) -> Hashable:
    request = row.origin.request
    return request.tenant, request.salt, request.grammar, request.prompt[:_ALIKE]
