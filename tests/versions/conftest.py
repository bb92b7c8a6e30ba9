"""An earlier and a later build of Millstream."""

from __future__ import annotations

import pytest
from support.versions.next_version import Build, next_build, previous_build


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return previous_build(tmp_path_factory.mktemp("builds") / "previous")


@pytest.fixture(scope="session")
def later(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return next_build(tmp_path_factory.mktemp("builds") / "next")
