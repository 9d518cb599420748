"""Run the tutorials and write their pages: ``python website/tutorials.py [--all] [NAME ...]``.

A tutorial is one script, ``NN-name.py``, in cells of the percent format that editors and jupytext know: ``# %%`` begins
a code cell (what follows on the line describes its picture), ``# %% [markdown]`` a text. A code cell of lines
``# !command`` runs commands; under ``# %% refused`` they have to end in an error of the user's. ``# %% tags=["check"]``
is run and not shown: it holds the text to its numbers.

Of each script this makes ``NN-name.md``, a page of plain Markdown with what the code printed and drew, which GitHub and
the site show alike, and ``NN-name.ipynb``, the same cells as a notebook to run. The page ends in digests of the script,
of its code and of itself: `stale` sees a page that belongs to another text. Where only words have changed, nothing is
run, and the page keeps what its code gave.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
WIDTH, DPI = 100, 110
_MARK = re.compile(r"^# %%(.*)$", re.MULTILINE)
_DIGESTS = re.compile(r"<!-- make tutorials: (\w+) (\w+) (\w+) -->\n$")
_PRINTED = re.compile(r"\n\n```text\n(.*?)\n```(?=\n\n)", re.DOTALL)
_DRAWN = re.compile(r"\n\n!\[.*?\]\(images/(.+?)\)(?:\n\n\*.+\.\*(?=\n))?")


@dataclass(frozen=True)
class Cell:
    """A cell of a script.

    Args:
        kind: ``markdown``, ``python``, ``console`` or ``check``.
        title: what its pictures show: their caption, and the words for those who cannot see them.
        text: its lines; of a text, without the comment signs.
        line: where it begins in the script.
    """

    kind: str
    title: str
    text: str
    line: int


@dataclass(frozen=True)
class Output:
    """What a cell printed, and what it drew, as PNG."""

    text: str
    pictures: tuple[bytes, ...] = ()


def scripts() -> list[Path]:
    """Return the tutorials, in their order."""
    return sorted(HERE.glob("[0-9][0-9]-*.py"))


def read_cells(source: str) -> list[Cell]:
    """Return the cells of a script."""
    marks = list(_MARK.finditer(source))
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    return [_cell(mark[1].strip(), source, mark.end() + 1, end) for mark, end in zip(marks, ends, strict=True)]


def _cell(head: str, source: str, start: int, end: int) -> Cell:
    text, line = source[start:end].strip("\n"), source.count("\n", 0, start) + 1
    if head.startswith("[markdown]"):
        return Cell("markdown", "", re.sub(r"^# ?", "", text, flags=re.MULTILINE), line)
    lines = text.splitlines()
    if lines and lines[0].startswith("# !") and all(one.startswith(("# !", "#  ")) for one in lines):
        return Cell("console", head, re.sub(r"^# !?", "", text, flags=re.MULTILINE), line)
    return Cell("check" if head == 'tags=["check"]' else "python", head, text, line)


def run_cells(cells: list[Cell], name: str) -> Iterator[tuple[Cell, Output]]:
    """Run the cells one after the other in one namespace, as a notebook does; yield each with what it gave."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    space: dict[str, Any] = {"__name__": "__main__"}
    before = ""
    for cell in cells:
        if cell.kind == "markdown":
            yield cell, Output("")
            continue
        try:
            text = _commands(cell) if cell.kind == "console" else _python(cell, name, space)
        except Exception as error:
            error.add_note(f"in the cell at line {cell.line} of {name}.py; the one before it printed:\n{before}")
            raise
        before = text
        yield cell, Output(text, tuple(_png(pyplot.figure(number)) for number in pyplot.get_fignums()))
        pyplot.close("all")


def _png(figure: Any) -> bytes:
    """Return a figure as a file without dates."""
    file = io.BytesIO()
    figure.savefig(file, dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def _python(cell: Cell, name: str, space: dict[str, Any]) -> str:
    """Run a cell; return what it printed, and its last expression as a notebook shows it."""
    tree = ast.increment_lineno(ast.parse(cell.text), cell.line - 1)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        exec(compile(tree, f"{name}.py", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"{name}.py", "eval"), space)
            if value is not None:
                print(repr(value))
    return out.getvalue()


def _commands(cell: Cell) -> str:
    """Run commands as a shell does; ``rootscale`` is the one of this Python."""
    allowed = (2,) if cell.title == "refused" else (0, 1, 3)  # 1 and 3 are verdicts
    environment = {
        **os.environ,
        "COLUMNS": str(WIDTH),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    printed = []
    for line in cell.text.replace("\\\n", " ").splitlines():
        command = re.sub(r"^rootscale\b", f"{shlex.quote(sys.executable)} -m rootscale", line)
        done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
        if done.returncode not in allowed or "Traceback" in done.stderr:
            raise RuntimeError(f"{line} ended with {done.returncode}:\n{done.stderr}")
        printed.append(done.stdout + done.stderr)
    return "\n".join(printed)


def render_page(given: list[tuple[Cell, Output]], name: str) -> tuple[str, dict[str, bytes]]:
    """Return the page (text, code, and what the code gave) and its pictures by their names."""
    parts, pictures = [], dict[str, bytes]()
    for cell, output in given:
        if cell.kind == "check":
            continue
        if cell.kind == "markdown":
            parts.append(cell.text)
            if len(parts) == 1:
                parts.append(f"*As a [notebook]({name}.ipynb), and as a [script]({name}.py).*")
            continue
        shown = "\n".join(line.rstrip() for line in output.text.strip("\n").splitlines())
        if cell.kind == "console":
            parts.append(f"{_opening(cell)}{shown}\n```")
        else:
            parts.append(_opening(cell))
            parts += [f"```text\n{shown}\n```"] if shown else []
        for picture in output.pictures:
            pictures[f"{name}-{len(pictures) + 1}.png"] = picture
            parts += [f"![{cell.title}](images/{list(pictures)[-1]})", f"*{cell.title}.*"]
    return "\n\n".join(parts) + "\n\n", pictures


def _opening(cell: Cell) -> str:
    """Return how a page shows the code of a cell: a block, which the output of commands still has to end."""
    if cell.kind == "python":
        return f"```python\n{cell.text}\n```"
    commands = re.sub(r"^(?=\S)", "$ ", cell.text, flags=re.MULTILINE)  # a line that goes on is indented
    return f"```console\n{commands}\n"


def read_outputs(page: str, cells: list[Cell], images: Path) -> list[tuple[Cell, Output]]:
    """Return the cells with what a page, which was made of the same code, says that they gave."""
    found, at = [], 0
    for cell in cells:
        text, pictures = "", []
        if cell.kind in ("python", "console"):
            at = page.index(_opening(cell), at) + len(_opening(cell))
            if cell.kind == "console":
                text, at = page[at : page.index("\n```\n\n", at)], page.index("\n```\n\n", at) + 4
            elif printed := _PRINTED.match(page, at):
                text, at = printed[1], printed.end()
            while drawn := _DRAWN.match(page, at):
                pictures.append((images / drawn[1]).read_bytes())
                at = drawn.end()
        found.append((cell, Output(text, tuple(pictures))))
    return found


def make_notebook(cells: list[Cell]) -> str:
    """Return the cells as a notebook without outputs; Jupyter's format is JSON."""
    made: list[dict[str, Any]] = []
    for cell in cells:
        if cell.kind == "check":
            continue
        text = re.sub(r"^(?=\S)", "!", cell.text, flags=re.MULTILINE) if cell.kind == "console" else cell.text
        one: dict[str, Any] = {
            "cell_type": "markdown" if cell.kind == "markdown" else "code",
            "id": f"cell-{len(made)}",
        }
        one |= {"metadata": {}, "source": text.splitlines(keepends=True)}
        made.append(one if cell.kind == "markdown" else one | {"execution_count": None, "outputs": []})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return (
        json.dumps(
            {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5},
            indent=1,
        )
        + "\n"
    )


def digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_code(cells: list[Cell]) -> str:
    """Return the digest of all that is run."""
    return digest("\n".join(f"{cell.kind} {cell.text}" for cell in cells if cell.kind != "markdown"))


def stale(script: Path) -> str:
    """Return why the page or the notebook of a script does not belong to it; empty where both do."""
    page, notebook, source = script.with_suffix(".md"), script.with_suffix(".ipynb"), script.read_text("utf-8")
    if not page.exists() or not notebook.exists():
        return f"{script.name} has no page or no notebook yet"
    text = page.read_text("utf-8")
    found = _DIGESTS.search(text)
    if not found or found[1] != digest(source):
        return f"{page.name} was made of another text"
    if found[3] != digest(text[: found.start()]):
        return f"{page.name} was changed by hand: change {script.name} instead"
    if notebook.read_text("utf-8") != make_notebook(read_cells(source)):
        return f"{notebook.name} was made of another text"
    named = set(re.findall(r"\]\(images/(.+?)\)", text))
    there = {path.name for path in (script.parent / "images").glob(f"{script.stem}-*.png")}
    return f"images/{min(named ^ there)} is missing, or is left from before" if named != there else ""


def run_script(script: Path) -> list[tuple[Cell, Output]]:
    """Run a script in an empty folder, and return its cells with what they gave."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")  # plt.show() is for notebooks
        warnings.showwarning = lambda message, category, *_: print(f"{category.__name__}: {message}")
        os.chdir(folder)
        try:
            return list(run_cells(read_cells(script.read_text("utf-8")), script.stem))
        finally:
            os.chdir(here)


def make_tutorial(script: Path, run: bool = True) -> bool:
    """Write the page, pictures and notebook of a script; nothing is written where it fails.

    Args:
        script: of the tutorial.
        run: whether to run it also where only words have changed.

    Returns:
        Whether it was run.
    """
    source, images, old = script.read_text("utf-8"), script.parent / "images", script.with_suffix(".md")
    cells = read_cells(source)
    before = old.read_text("utf-8") if old.exists() else ""
    made = _DIGESTS.search(before)
    run = run or made is None or made[2] != digest_code(cells) or made[3] != digest(before[: made.start()])
    given = run_script(script) if run else read_outputs(before, cells, images)
    page, pictures = render_page(given, script.stem)
    images.mkdir(exist_ok=True)
    for picture in images.glob(f"{script.stem}-*.png"):
        picture.unlink()
    for name, content in pictures.items():
        (images / name).write_bytes(content)
    script.with_suffix(".ipynb").write_text(make_notebook(cells), "utf-8")
    digests = f"{digest(source)} {digest_code(cells)} {digest(page)}"
    old.write_text(f"{page}<!-- make tutorials: {digests} -->\n", "utf-8")
    return run


def main() -> int:
    """Make the tutorials that are stale, each in a process of its own; with ``--all`` or names, those."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as 01-switch, or its number")
    parser.add_argument("--all", action="store_true", help="run also those whose code has not changed")
    args = parser.parse_args()
    sys.path[:] = [os.path.abspath(entry) if entry else entry for entry in sys.path]  # they run elsewhere
    asked = [script for script in scripts() if any(script.stem.startswith(name) for name in args.names)]
    if len(asked) == 1:
        started = time.perf_counter()
        run = make_tutorial(asked[0], args.all)
        wall, core = time.perf_counter() - started, time.process_time()
        print(f"{asked[0].stem}: " + (f"{wall:.0f} s, {core:.0f} s of a core" if run else "new words"), flush=True)
        return 0
    for script in asked or scripts():
        if args.all or stale(script):
            subprocess.run([sys.executable, __file__, script.stem, *["--all"][: args.all]], check=True)
        else:
            print(f"{script.stem}: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
