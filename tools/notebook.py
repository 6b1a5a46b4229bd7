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

from IPython.core.displayhook import DisplayHook
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
    shell: Any = InteractiveShell.instance(displayhook_class=_Quiet)
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(codes, 1):
        with capture_output() as captured:
            done = shell.run_cell("".join(cell["source"]), store_history=True)
        if not done.success:
            sys.exit(f"cell {number} failed:\n{captured.stdout}{captured.stderr}")
        cell["execution_count"], cell["outputs"] = number, _shown(captured)
        if done.result is not None:
            bundle, _ = shell.display_formatter.format(done.result)
            cell["outputs"].append(_output("execute_result", bundle) | {"execution_count": number})


class _Quiet(DisplayHook):
    """A display hook that keeps a cell's result and prints nothing."""

    def __call__(self, result: Any = None) -> None:
        if result is not None:
            self.fill_exec_result(result)


def _shown(captured: Any) -> list[dict[str, Any]]:
    """Return what a cell printed and displayed. An update replaces what its display showed before."""
    updated = {output.transient.get("display_id", n): output for n, output in enumerate(captured.outputs)}
    shown = [_output("display_data", output.data) for output in updated.values()]
    if captured.stdout:
        text = captured.stdout.splitlines(keepends=True)
        shown.insert(0, {"name": "stdout", "output_type": "stream", "text": text})
    return shown


def _output(kind: str, bundle: dict[str, str]) -> dict[str, Any]:
    data = {of: text.splitlines(keepends=True) for of, text in bundle.items()}
    return {"data": data, "metadata": {}, "output_type": kind}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
