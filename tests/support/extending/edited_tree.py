"""A copy of this tree that is changed as a recipe of the page *Extending* says, and whose own tests run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from support.pages import ROOT

PATCHES = Path(__file__).parent
PRINTED = {  # pages, and the scripts that print their tables
    "ops/pages/settings.md": "tests/test_pages.py",
    "ops/pages/protocol.md": "tests/test_protocol_page.py",
    "ops/pages/metrics.md": "tests/test_metrics.py",
    "ops/pages/models.md": "ops/models/tables.py",
}
PACKAGES = ("producer/millstream", "worker/millstream_worker")
_COPIED = ("producer", "worker", "tests", "ops/pages", "ops/models", "README.md", "pyproject.toml")
_AS_THE_TREE = ("-p0", "-C1")  # paths from the root; a line of context that fits is enough
_BLOCK = r"<!-- (\w+) -->\n(.*?)\n<!-- /\1 -->"


def patched(patch: str) -> set[str]:
    """The files that it changes or adds, from the root."""
    return set(re.findall(r"^\+\+\+ (\S+)", (PATCHES / patch).read_text("utf-8"), re.MULTILINE))


def check_patch(patch: str) -> None:
    """That it would change this tree; it changes nothing."""
    command = ("git", "apply", "--check", *_AS_THE_TREE, str(PATCHES / patch))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{patch} has to follow what was changed in the tree:\n{done.stderr}"


class EditedTree:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _COPIED:
            source, copy = ROOT / name, folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy)
            else:
                shutil.copy2(source, copy)

    def apply(self, patch: str, files: Iterable[str]) -> None:
        """What it does to these files."""
        if not (files := set(files)):
            return
        only = [f"--include={file}" for file in files]
        done = self._run("git", "apply", *_AS_THE_TREE, *only, str(PATCHES / patch))
        assert done.returncode == 0, f"{patch} has to follow what was changed in the tree:\n{done.stderr}"

    def print_tables(self) -> None:
        """Into all pages that have some."""
        for page, script in PRINTED.items():
            printed = self._run(sys.executable, script).stdout
            tables = dict(re.findall(_BLOCK, printed, re.DOTALL)) or {"bounds": printed.rstrip("\n")}
            file = self.folder / page
            for name, table in tables.items():
                begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
                before, _, rest = file.read_text("utf-8").partition(begin)
                file.write_text("".join((before, begin, table, end, rest.partition(end)[2])), "utf-8")

    def failures(self, *tests: str) -> set[str]:
        """The ids of those of the tree's tests that fail, without their parameters."""
        done = self._run(sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *tests)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return set(re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", done.stdout, re.MULTILINE))

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        folders = [self.folder / one for one in ("producer", "worker", "tests", "")]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        own = {
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "GIT_CEILING_DIRECTORIES": str(self.folder.parent),  # it is in no repository
        }
        return subprocess.run(
            command, cwd=self.folder, env=kept | own, capture_output=True, text=True, check=False
        )
