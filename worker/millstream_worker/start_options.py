"""The options of one start of `millstream-worker`, which are no settings. Needs no library."""

from __future__ import annotations

CHECK, REPLACE_MODEL, VERSION = "--check", "--replace-model", "--version"
START_OPTIONS = {
    CHECK: "Print a page about model, device and speeds, without a queue, instead of serving.",
    REPLACE_MODEL: "Replace the queue's model where it is another one.",
    VERSION: "Print the version.",
}
