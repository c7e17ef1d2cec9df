"""The report's style sheet: dark or light as the reader's system says, no external resource."""

CSS = """
:root { color-scheme: light dark; --bg: #fbfbfa; --card: #fff; --ink: #1c1e21; --dim: #667; --rule: #dfe1e5;
  --good: #177245; --bad: #b3261e; --c0: #2563c9; --c1: #c2570c; --c2: #177245; --c3: #8a3fb8; --c4: #b3261e;
  --c5: #0b7a85; --c6: #8a6d00; --c7: #555; }
@media (prefers-color-scheme: dark) { :root { --bg: #15171a; --card: #1d2024; --ink: #e6e8eb; --dim: #98a0ab;
  --rule: #33383f; --good: #5cc489; --bad: #f0867d; --c0: #79a9f5; --c1: #f0a35e; --c2: #5cc489; --c3: #c695e8;
  --c4: #f0867d; --c5: #5cc3cf; --c6: #d9bb4d; --c7: #aaa; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 1040px; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 10px; } h3 { font-size: 15px; margin: 0 0 6px; }
p { margin: 6px 0; } .dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 18px; }
.tile, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 22px; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 12px; }
figure { margin: 0; } svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--rule); } .tick { fill: var(--dim); font-size: 11px; }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
.dot { fill: var(--c); } .bar { stroke: var(--c); stroke-width: 5; opacity: .35; }
.legend { font-size: 12px; color: var(--dim); } .key { margin-right: 12px; white-space: nowrap; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; background: var(--card); border: 1px solid var(--rule); font-size: 14px; }
th, td { padding: 5px 12px; text-align: left; border-top: 1px solid var(--rule); vertical-align: top; }
th { color: var(--dim); font-weight: 500; border-top: 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
details { border: 1px solid var(--rule); border-radius: 8px; background: var(--card);
  margin: 8px 0; padding: 8px 14px; }
summary { cursor: pointer; }
pre { margin: 2px 0 10px; padding: 8px 10px; white-space: pre-wrap; overflow-wrap: anywhere; background: var(--bg);
  border-left: 3px solid var(--rule); font: 12.5px/1.45 ui-monospace, monospace; max-height: 420px; overflow-y: auto; }
.model { border-left-color: var(--c0); } .tool { border-left-color: var(--c3); }
.environment { border-left-color: var(--c5); }
.who { font-size: 12px; color: var(--dim); }
"""
