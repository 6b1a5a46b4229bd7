"""Run the code cells of a notebook, in order and in this process, as a kernel would, and store their outputs.

    python tools/notebook.py FILE           # writes the outputs into FILE
    python tools/notebook.py FILE --print   # prints the notebook with its outputs, and leaves FILE

The standard error is not stored, as libraries write to it. The exit code is 1 when a cell fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("notebook.py", description="Run a notebook and store its outputs.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--print", action="store_true", help="print the notebook, and leave the file")
    options = parser.parse_args(arguments)
    notebook = json.loads(options.file.read_text())
    run(notebook)
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    if options.print:
        print(text, end="")
    else:
        options.file.write_text(text)
    return 0


def run(notebook: dict[str, Any]) -> None:
    """Run the code cells of a notebook (format 4), and put their outputs into it."""
    shell = InteractiveShell.instance(colors="nocolor")
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(codes, 1):
        with capture_output() as captured:
            done = shell.run_cell("".join(cell["source"]), store_history=True)
        if not done.success:
            sys.exit(f"cell {number} failed:\n{captured.stdout}{captured.stderr}")
        cell["execution_count"] = number
        cell["outputs"] = _outputs(captured, number, has_result=done.result is not None)


def _outputs(captured: Any, number: int, *, has_result: bool) -> list[dict[str, Any]]:
    """Return what a cell printed and displayed as outputs of the notebook format; the result is the last."""
    streams = [{"name": "stdout", "output_type": "stream", "text": captured.stdout.splitlines(keepends=True)}]
    updated = {}  # an update replaces what its display showed before
    for place, output in enumerate(captured.outputs):
        updated[output.transient.get("display_id", place)] = output
    shown = [
        {
            "data": {kind: data.splitlines(keepends=True) for kind, data in output.data.items()},
            "metadata": {},
            "output_type": "display_data",
        }
        for output in updated.values()
    ]
    if has_result and shown:
        shown[-1] |= {"output_type": "execute_result", "execution_count": number}
    return [*(streams if captured.stdout else []), *shown]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
