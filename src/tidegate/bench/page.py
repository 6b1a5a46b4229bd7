"""A report as one self-contained HTML page: tables with bars, light or dark as the reader's screen is."""

from __future__ import annotations

import html
from itertools import groupby

from tidegate.bench.report import Figure, Report, shown, shown_ratio

STYLE = """
:root { color-scheme: light dark; --line: light-dark(#d8dee6, #39424e); --bar: light-dark(#9db8d6, #48617d);
  --ours: light-dark(#1f6f78, #4fb3bf); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  background: light-dark(#fff, #14181d); color: light-dark(#1c2733, #e3e8ee); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
td, th { padding: .25rem .6rem .25rem 0; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: middle; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.bar { width: 36%; } td:first-child { width: 26%; }
.bar div { height: .8rem; border-radius: 2px; background: var(--bar); }
.bar div.ours { background: var(--ours); } dl { display: grid; grid-template-columns: max-content 1fr;
  gap: .1rem 1rem; } dt { opacity: .7; } dd { margin: 0; }
"""

PROMISE = (
    "Medians and percentiles of one run, all alternating on the same servers. The others promise nothing:"
    " no version, no log, nothing atomic."
)


def page(report: Report) -> str:
    """Render the whole page; it loads nothing from elsewhere."""
    of_settings = "".join(
        f"<dt>{_text(name)}</dt><dd>{_text(of)}</dd>" for name, of in report.settings.items()
    )
    sections = "".join(
        _section(part, what, list(figures))
        for (part, what), figures in groupby(report.figures, lambda figure: (figure.part, figure.what))
    )
    left_out = "".join(f"<li>{_text(each)}</li>" for each in report.left_out)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>tidegate bench</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>tidegate bench</h1><p>{_text(report.made_at)}, {report.seconds:.0f} s. {PROMISE}</p>"
        f"<dl>{of_settings}</dl>{sections}"
        + (f"<h2>Left out</h2><ul>{left_out}</ul>" if left_out else "")
        + "</body></html>\n"
    )


def _section(part: str, what: str, figures: list[Figure]) -> str:
    most = max((figure.value for figure in figures), default=0.0)
    better = "more is better" if any(figure.more_is_better for figure in figures) else "less is better"
    rows = "".join(
        f'<tr><td>{_text(figure.who)}</td><td class="number">{_text(shown(figure.value, figure.unit))}</td>'
        f'<td class="bar">{_bar(figure, most)}</td><td class="number">{_text(shown_ratio(figure))}</td></tr>'
        for figure in figures
    )
    return f"<h2>{_text(part)}: {_text(what)} <small>({better})</small></h2><table>{rows}</table>"


def _bar(figure: Figure, most: float) -> str:
    share = 100 * max(0.0, figure.value) / most if most > 0 else 0.0
    ours = ' class="ours"' if figure.ratio is not None or figure.who.startswith("tidegate") else ""
    return f'<div{ours} style="width: {share:.1f}%"></div>'


def _text(words: str) -> str:
    return html.escape(words)
