"""The HTML template of a report. The page is self-contained: it loads nothing from elsewhere."""

from __future__ import annotations

import string

PAGE = string.Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>tidegate torture: $verdict</title>
<style>
:root {
  --text: #1c2733; --soft: #5b6b7b; --ground: #ffffff; --panel: #f4f6f8; --line: #d8dee5;
  --good: #d5f0dd; --good-text: #11552a; --bad: #fbd5d5; --bad-text: #8a1414;
  --open: #fdeec8; --open-text: #6b4a00; --link: #0b5cad;
}
@media (prefers-color-scheme: dark) {
  :root {
    --text: #e3e9ef; --soft: #9aa8b6; --ground: #12181f; --panel: #1b232c; --line: #33404d;
    --good: #173d26; --good-text: #a8e6bd; --bad: #541a1d; --bad-text: #ffc2c2;
    --open: #4a3810; --open-text: #ffdf9a; --link: #7db8ff;
  }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground);
  max-width: 1500px; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.4rem; margin: 0 0 1rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
.verdict { padding: .8rem 1rem; border-radius: 6px; font-size: 1.15rem; font-weight: 600; }
.good { background: var(--good); color: var(--good-text); }
.bad { background: var(--bad); color: var(--bad-text); }
.open { background: var(--open); color: var(--open-text); }
.none { color: var(--soft); }
.wide { overflow-x: auto; max-width: 100%; }
.parts { display: flex; flex-wrap: wrap; gap: 1.2rem; }
table { border-collapse: collapse; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left; vertical-align: top; }
th { background: var(--panel); font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.matrix td { text-align: center; font-variant-numeric: tabular-nums; padding: .15rem .35rem; }
.matrix th.way { font-weight: 400; font-size: .75rem; padding: .1rem .25rem; }
.matrix th.failpoint { white-space: nowrap; position: sticky; left: 0; font-weight: 400; }
.pair { display: inline-block; margin: 0 1.2rem .3rem 0; }
article { border-radius: 6px; padding: .8rem 1rem; margin: 0 0 .8rem; overflow-wrap: anywhere; }
article ul { margin: .2rem 0; padding-left: 1.2rem; }
article a { color: inherit; }
a { color: var(--link); }
code { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: var(--panel); padding: .7rem 1rem; border-radius: 6px; overflow-x: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
small, .soft { color: var(--soft); }
article small { color: inherit; }
</style>
</head>
<body>
<h1>tidegate torture</h1>
<p class="verdict $verdict_class">$verdict</p>
<dl>
<dt>log</dt><dd>$log</dd><dt>store</dt><dd>$store</dd>
<dt>began</dt><dd>$began, $seconds s</dd><dt>seed</dt><dd>$seed</dd><dt>workloads</dt><dd>$workloads</dd>
</dl>
<p>The same schedule again:</p>
<pre><code>$command</code></pre>
<h2>Cells</h2>
<table>$results</table>
<h2>What was checked</h2>
<p>$checked</p>
<h2>Cells that are not proven</h2>
$wrong
<h2>Crash table: failpoint, fault, way of finishing</h2>
<p class="soft">The number of proven cells, and of all cells if some are not proven. A dot: not run.
Faults that are not possible here have no column.</p>
<div class="parts">$matrix</div>
<h2>Cells that are not possible here</h2>
$skipped
<h2>Errors raised in drivers and readers</h2>
<p class="soft">Documented errors are right answers to faults. Any other error is a finding.</p>
<p>$errors</p>
<h2>Glossary</h2>
<dl>$words</dl>
</body>
</html>
""")
