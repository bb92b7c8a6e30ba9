"""`millstream batch pages`: documents to lines of a batch, and its answers to documents."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from millstream.batch.documents.joined_documents import JoinedDocuments
from millstream.batch.documents.page_lines import PageLines, prompt_of
from millstream.batch.files.rowfile import WriteFailed, replaced_file
from millstream.cli.display.terminal import answers, counted, plain, say, warn
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.exits import ExitCode
from millstream.errors import InvalidRequest
from millstream.json_bytes import json_bytes

_SHOWN = 20  # pages without an answer


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
            whole = _join(join, into or join.parent)
        elif not files or prompt is None or out is None:
            raise InvalidRequest("FILE", [*map(str, files or ())], "give files, --prompt and -o, or --join")
        else:
            whole = _write(PageLines.of(files, prompt_of(prompt), model, max_tokens), out)
    if not whole:
        raise typer.Exit(ExitCode.FAILED)


def _write(made: PageLines, out: Path) -> bool:
    try:
        with replaced_file(out) as file:
            for line in made.lines():
                file.write(json_bytes(line) + b"\n")
    except OSError as error:
        raise WriteFailed(f"{out} cannot be written: {error.strerror}") from error
    for name, problem in made.problems.items():
        warn(f"{plain(name)}: {problem}")
    read = len(made.files) - len(made.problems)
    say(f"{counted(made.pages, 'page')} of {counted(read, 'file')} in {out}; to read them:")
    results = out.with_suffix(".answers.jsonl")
    answers.out(
        shlex.join(["millstream", "batch", "run", str(out), "--media", str(made.root), "-o", str(results)])
    )
    return not made.problems


def _join(out: Path, into: Path) -> bool:
    joined = JoinedDocuments(out)
    for path in joined.write(into):
        answers.out(str(path))
    failed = [(name, page, code) for name, its in joined.failed.items() for page, code in sorted(its.items())]
    for name, page, code in failed[:_SHOWN]:
        warn(f"{plain(name)}{f', page {page}' if page else ''} has no answer ({plain(code)})")
    if more := len(failed) - _SHOWN if len(failed) > _SHOWN else 0:
        warn(f"and {counted(more, 'more page')}")
    return not failed
