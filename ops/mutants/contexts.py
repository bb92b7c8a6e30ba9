"""A pytest plugin: under `coverage run`, what a test runs is recorded with its name."""

from __future__ import annotations

import coverage


def pytest_runtest_logstart(nodeid: str) -> None:
    """As a plugin: lines that are run from now on belong to this test."""
    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(nodeid)
