from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from support.engine.pages import AnsweredPages
from support.models.vision_checkpoints import build


@pytest.fixture(scope="session")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], AnsweredPages]:
    @cache
    def make(kind: str) -> AnsweredPages:
        return AnsweredPages(build(kind, tmp_path_factory.mktemp(kind)))

    return make
