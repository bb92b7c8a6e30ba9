"""`millstream batch pages`: documents to lines of a batch, and its answers to documents."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from millstream.batch.documents.joined_documents import NO_ROW, JoinedDocuments
from millstream.batch.documents.page_lines import PageLines, prompt_of
from millstream.batch.files.rowfile import replaced_file, written
from millstream.cli.display.terminal import answers, counted, plain, say, warn
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.exits import ExitCode
from millstream.errors import InvalidRequest
from millstream.json_bytes import json_bytes

_SHOWN = 20  # documents with pages without an answer, and runs of these pages


def pages(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]…", help="Images, and PDF files.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT|@FILE", help="What to ask of each page.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where the lines go.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The body.model of all lines.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Most tokens of a page's answer.")
    ] = None,
    join: Annotated[
        Path | None, typer.Option(metavar="ANSWERS", help="The output of the run: write its documents.")
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(metavar="IN", help="With --join: the run's lines; default: those that its files name."),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --join: where; default: beside ANSWERS.")
    ] = None,
) -> None:
    """Write one line of a batch file for each image, and for each page of a PDF file; with --join, one
    Markdown file a document from the answers.

    Exit code 1 if a file cannot be read, or a page has no answer; all others are written.
    """
    with reported(False, lambda: "interrupted"):
        if join is not None:
            if files or prompt is not None or out is not None:
                raise InvalidRequest("--join", str(join), "takes no FILE, --prompt and -o; give --into DIR")
            whole = _join(join, lines, into or join.parent)
        elif lines is not None:
            raise InvalidRequest("--lines", str(lines), "goes with --join")
        elif not files or prompt is None or out is None:
            raise InvalidRequest("FILE", [*map(str, files or ())], "give files, --prompt and -o, or --join")
        else:
            whole = _write(PageLines.of(files, prompt_of(prompt), model, max_tokens), out)
    if not whole:
        raise typer.Exit(ExitCode.FAILED)


def _write(made: PageLines, out: Path) -> bool:
    with written(out):
        with replaced_file(out) as file:
            for line in made.lines():
                file.write(json_bytes(line) + b"\n")
    for name, problem in made.problems.items():
        warn(f"{plain(name)}: {problem}")
    read = len(made.files) - len(made.problems)
    say(f"{counted(made.pages, 'page')} of {counted(read, 'file')} in {out}; to read them:")
    results = out.with_suffix(".answers.jsonl")
    answers.out(
        shlex.join(["millstream", "batch", "run", str(out), "--media", str(made.root), "-o", str(results)])
    )
    return not made.problems


def _join(out: Path, lines: Path | None, into: Path) -> bool:
    joined = JoinedDocuments(out, lines)
    for path in joined.write(into):
        answers.out(str(path))
    for path in joined.torn:
        warn(f"{path} ends with a part of a row, which is left out: the run was cut off, or goes on")
    pages: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, its in joined.failed.items():
        for page, code in sorted(its.items()):
            pages[name, code].append(page)
    for (name, code), some in list(pages.items())[:_SHOWN]:
        warn(f"{plain(name)}{_told(some)} {'has' if len(some) == 1 else 'have'} no answer ({plain(code)})")
    if more := sum(map(len, list(pages.values())[_SHOWN:])):
        warn(f"and {counted(more, 'more page')}")
    if any(code == NO_ROW for _, code in pages) or joined.torn:
        warn(f"start the run again for pages that have no row ({NO_ROW}), and join then")
    if not joined.has_lines:
        warn("the run's lines are away: last pages may be missing that are not told; give them with --lines")
    return not (pages or joined.torn)


def _told(pages: Sequence[int]) -> str:
    """The pages of a document, which are sorted; a document without pages has page 0."""
    runs: list[list[int]] = []
    for page in pages:
        if runs and runs[-1][-1] == page - 1:
            runs[-1][1:] = [page]
        else:
            runs.append([page])
    shown = ["-".join(map(str, run)) for run in runs[:_SHOWN]] + ["…"] * (len(runs) > _SHOWN)
    return "" if list(pages) == [0] else f", page{'s' * (len(pages) > 1)} {', '.join(shown)}"
