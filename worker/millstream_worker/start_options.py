"""The options of one start of `millstream-worker`, which are no settings. Needs no library."""

from __future__ import annotations

CHECK, MODELS, REPLACE_MODEL, VERSION = "--check", "--models", "--replace-model", "--version"
START_OPTIONS = {
    CHECK: "Print a page about model, device and speeds, without a queue, instead of serving.",
    MODELS: "Print the model types that run, and why others do not.",
    REPLACE_MODEL: "Replace the queue's model where it is another one.",
    VERSION: "Print the version.",
}
