"""The README and the pages in ops/ say what is there: every setting with its default, links, commands, and
paths and classes on the architecture page. Run this file to print the tables of settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import typer
from support.pages import ROOT, broken_links, commands, refused

from millstream.cli.app import app
from millstream_worker.settings import PREFIX, Settings, load

OPS = ROOT / "ops"
PAGES = sorted([ROOT / "README.md", *OPS.glob("pages/*.md"), *OPS.glob("bench/**/*.md")], key=str)
FIRST = (
    "model", "redis_url", "queue", "kv_memory", "max_context", "max_rows", "device", "dtype", "threads",
    "grace_s", "result_ttl_s", "metrics_port",
)  # fmt: skip
PACKAGES = ("producer/millstream", "worker/millstream_worker")


def table(names: Iterable[str]) -> str:
    rows = [f"| `{PREFIX}…` | default | |", "|---|---|---|"]
    for name in names:
        field = Settings.model_fields[name]
        text = " ".join((field.description or "").split())
        rows.append(f"| `{name.upper()}` | {shown(field.default)} | {text} |")
    return "\n".join(rows)


def shown(default: object) -> str:
    if default in ("", None):
        return "–"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def tables() -> dict[str, str]:
    advanced = [name for name in Settings.model_fields if name not in FIRST]
    return {"first": table(FIRST), "advanced": table(advanced)}


@pytest.mark.parametrize("name", ["first", "advanced"])
def test_every_setting_stands_on_its_page(name: str) -> None:
    page = (OPS / "pages" / "settings.md").read_text("utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == tables()[name]


def options() -> str:
    """The table of the gateway's options."""
    rows = ["| option | variable | default | |", "|---|---|---|---|"]
    for option in typer.main.get_command(app).commands["gateway"].params:  # type: ignore[attr-defined]
        variable = f"`{option.envvar}`" if option.envvar else "–"
        if option.name not in ("help", "model"):
            default = option.show_default if isinstance(option.show_default, str) else option.default
            rows.append(f"| `{option.opts[0]}` | {variable} | {shown(default)} | {option.help} |")
    return "\n".join(rows)


def test_every_option_of_the_gateway_stands_on_its_page() -> None:
    page = (OPS / "pages" / "gateway.md").read_text("utf-8")
    found = re.search(r"<!-- options -->\n(.*?)\n<!-- /options -->", page, re.DOTALL)
    assert found is not None
    assert found[1] == options()


def test_every_setting_has_a_description_that_ends_as_a_sentence() -> None:
    texts = {name: field.description or "" for name, field in Settings.model_fields.items()}
    assert [name for name, text in texts.items() if not re.fullmatch(r"[A-Z].*\.", text, re.DOTALL)] == []


def test_every_link_leads_somewhere() -> None:
    assert {page.name: links for page in PAGES if (links := broken_links(page))} == {}


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *(f"ops/pages/{page}.md" for page in ("batch", "gateway", "operating", "running_on_a_gpu")),
    ],
)
def test_commands_have_the_options_that_the_pages_give_them(name: str) -> None:
    given = commands(ROOT / name, "millstream")
    assert given
    assert refused(given) == []
    for words in commands(ROOT / name, "millstream-worker"):
        assert load(words).model_fields_set
    assert len(refused([["submit", "x", "--no-such-option"]])) == 1


@pytest.mark.parametrize(("page", "least"), [("promises.md", 10), ("weights.md", 6), ("batch.md", 20)])
def test_every_promise_and_format_names_tests_that_exist(page: str, least: int) -> None:
    text = (OPS / "pages" / page).read_text("utf-8")
    named = re.findall(r"`(tests/[a-z_/.0-9]+)(?:::(\w+))?`", text)
    assert len(named) > least
    assert [path for path, _ in named if not (ROOT / path).exists()] == []
    of_tests = [(path, name) for path, name in named if name]
    assert [one for one in of_tests if f"def {one[1]}(" not in (ROOT / one[0]).read_text("utf-8")] == []


def test_every_path_and_class_of_the_architecture_page_is_there() -> None:
    code = re.findall(r"`([^`\n]+)`", (OPS / "pages" / "architecture.md").read_text("utf-8"))
    paths = [text for text in code if re.fullmatch(r"[\w./-]+(/|\.(py|lua|cpp|h|md))", text)]
    names = [text for text in code if re.fullmatch(r"[A-Z][a-z]\w+(\.\w+)?", text)]
    assert len(paths) > 20
    assert len(names) > 5
    assert [path for path in paths if not exists(path)] == []
    assert sorted(set(names) - defined()) == []


def exists(path: str) -> bool:
    """From the repository's root, or, as the page shortens it, from within a package."""
    return any((ROOT / root / path).exists() for root in ("", *PACKAGES))


def defined() -> set[str]:
    """The classes of both packages, and their methods as Class.method."""
    found = set()
    for root in PACKAGES:
        for file in (ROOT / root).rglob("*.py"):
            found |= defined_in(file)
    return found


def defined_in(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {node.name, *(f"{node.name}.{one.name}" for one in methods)}
    return found


if __name__ == "__main__":
    for name, text in tables().items():
        print(f"<!-- {name} -->\n{text}\n<!-- /{name} -->\n")
    print(options())
