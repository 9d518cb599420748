"""Run the tutorials: ``python website/tutorials.py [--all] [NAME ...]``.

A tutorial is one notebook, ``docs/tutorials/NN-name.ipynb``, with what its code printed and drew. Jupyter opens it,
GitHub shows it, and the site has a page made of it (`page`). A cell of lines ``!command`` runs commands. Tags of a cell
say the rest: under ``refused`` its commands have to end in an error of the user's; ``check`` holds the text to its
numbers, and is not on the page. ``caption`` in a cell's metadata describes its picture.

The notebook has a digest of its code in its metadata: `stale` sees outputs that are of other code.
"""

from __future__ import annotations

import argparse
import ast
import base64
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
WIDTH, DPI = 80, 110
#: A cell, and a notebook, as JSON has them.
Cell = dict[str, Any]
Notebook = dict[str, Any]


def notebooks() -> list[Path]:
    """Return the tutorials, in their order."""
    return sorted(HERE.glob("[0-9][0-9]-*.ipynb"))


def load(path: Path) -> Notebook:
    """Return a notebook."""
    found: Notebook = json.loads(path.read_text("utf-8"))
    return found


def save(notebook: Notebook, path: Path) -> None:
    """Write a notebook as Jupyter does."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


def source(cell: Cell) -> str:
    """Return the text of a cell."""
    return "".join(cell["source"])


def kind(cell: Cell) -> str:
    """Return what a cell is: ``markdown``, ``python``, ``console`` or ``check``."""
    if cell["cell_type"] == "markdown":
        return "markdown"
    if "check" in cell["metadata"].get("tags", ()):
        return "check"
    return "console" if source(cell).startswith("!") else "python"


def digest(notebook: Notebook) -> str:
    """Return a short hash of all that is run."""
    text = "\n".join(f"{kind(cell)} {source(cell)}" for cell in notebook["cells"] if kind(cell) != "markdown")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stale(path: Path) -> bool:
    """Return whether what a notebook shows is of other code than it has."""
    notebook = load(path)
    return bool(notebook["metadata"].get("code") != digest(notebook))


# -- running -----------------------------------------------------------------------------------------------------------


def run(path: Path) -> None:
    """Run a notebook in an empty folder, and put what its cells gave into it; nothing is written where it fails."""
    notebook, here = load(path), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")  # plt.show() is for notebooks
        warnings.showwarning = lambda message, category, *_: print(f"{category.__name__}: {message}")
        os.chdir(folder)
        try:
            _run_cells(notebook["cells"], path.name)
        finally:
            os.chdir(here)
    notebook["metadata"]["code"] = digest(notebook)
    save(notebook, path)


def _run_cells(cells: list[Cell], name: str) -> None:
    """Run cells one after the other in one namespace."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    space: dict[str, Any] = {"__name__": "__main__"}
    before = ""
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "markdown":
            continue
        try:
            text = _commands(cell) if kind(cell) == "console" else _python(source(cell), name, space)
        except Exception as error:
            error.add_note(f"in cell {number} of {name}; the one before it printed:\n{before}")
            raise
        before = text
        shown = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
        cell["outputs"] = [_printed(shown)] if shown else []
        cell["outputs"] += [_drawn(pyplot.figure(one), cell["metadata"]) for one in pyplot.get_fignums()]
        pyplot.close("all")


def _printed(text: str) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": f"{text}\n".splitlines(keepends=True)}


def _drawn(figure: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    figure.savefig(file, dpi=DPI, metadata={"Software": None})  # no dates
    data = {
        "image/png": base64.b64encode(file.getvalue()).decode(),
        "text/plain": [metadata.get("caption", "a picture")],
    }
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def _python(text: str, name: str, space: dict[str, Any]) -> str:
    """Run a cell; return what it printed, and its last expression as a notebook shows it."""
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        exec(compile(tree, name, "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
            if value is not None:
                print(repr(value))
    return out.getvalue()


def _commands(cell: Cell) -> str:
    """Run commands as a shell does; ``rootscale`` is the one of this Python."""
    refused = "refused" in cell["metadata"].get("tags", ())
    allowed = (2,) if refused else (0, 1, 3)  # 1 and 3 are verdicts
    environment = {
        **os.environ,
        "COLUMNS": str(WIDTH),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    printed = []
    for line in re.findall(r"^!(.*)$", source(cell).replace("\\\n", " "), re.MULTILINE):
        command = re.sub(r"^rootscale\b", f"{shlex.quote(sys.executable)} -m rootscale", line)
        done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
        if done.returncode not in allowed or "Traceback" in done.stderr:
            raise RuntimeError(f"{line} ended with {done.returncode}:\n{done.stderr}")
        printed.append(done.stdout + done.stderr)
    return "\n".join(printed)


# -- the page ----------------------------------------------------------------------------------------------------------


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as a page (text, code, and what the code gave) and its pictures by their names."""
    parts, pictures = [], dict[str, bytes]()
    for cell in load(path)["cells"]:
        text = source(cell)
        if kind(cell) == "check":
            continue
        if kind(cell) == "markdown":
            parts.append(text)
            if len(parts) == 1:
                parts.append(f"*As a [notebook]({path.name}).*")
            continue
        printed = "".join("".join(output["text"]) for output in cell["outputs"] if "text" in output)
        if kind(cell) == "console":
            parts.append(f"```console\n{re.sub(r'^!', '$ ', text, flags=re.MULTILINE)}\n{printed}```")
        else:
            parts.append(f"```python\n{text}\n```")
            parts += [f"```text\n{printed}```"] if printed else []
        caption = cell["metadata"].get("caption", "")
        for output in cell["outputs"]:
            if "data" in output:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(output["data"]["image/png"])
                parts += [f"![{caption}](images/{name})", f"*{caption}.*"]
    return "\n\n".join(parts) + "\n", pictures


def main() -> int:
    """Run the tutorials that are stale, each in a process of its own; with ``--all`` or names, those."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as 01-switch, or its number")
    parser.add_argument("--all", action="store_true", help="run also those whose code has not changed")
    args = parser.parse_args()
    sys.path[:] = [os.path.abspath(entry) if entry else entry for entry in sys.path]  # they run elsewhere
    asked = [path for path in notebooks() if any(path.stem.startswith(name) for name in args.names)]
    if len(asked) == 1:
        started = time.perf_counter()
        run(asked[0])
        wall, core = time.perf_counter() - started, time.process_time()
        print(f"{asked[0].stem}: {wall:.0f} s, {core:.0f} s of a core", flush=True)
        return 0
    for path in asked or notebooks():
        if args.all or stale(path):
            subprocess.run([sys.executable, __file__, path.stem], check=True)
        else:
            print(f"{path.stem}: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
