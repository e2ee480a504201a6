"""How the page looks: two palettes whose four kinds of time are told apart with colour-blind eyes and in grey."""

STYLE = """
:root{--ground:#fcfcfb;--card:#fff;--ink:#1b1c1e;--dim:#5c6066;--line:#dcdee1;--curve:#1f6fb5;--queued:#b9bdc4;
--starting:#e9b23c;--productive:#1f6fb5;--lost:#c4432b;--good:#1d7a45;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ground:#16181b;--card:#1e2125;--ink:#e8eaed;--dim:#a0a6ae;--line:#363b42;
--curve:#62a8e8;--queued:#5d646e;--starting:#d9a53a;--productive:#4c97dc;--lost:#e2674d;--good:#5cc48a;--bad:#f0867c}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI",Roboto,sans-serif}
main{max-width:1040px;margin:0 auto;padding:24px 20px}
h1{font-size:1.6rem;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:0 0 10px;overflow-wrap:anywhere}
p{margin:4px 0 10px;overflow-wrap:anywhere}
header p{color:var(--dim)}header .verdict{color:var(--ink);font-weight:600}
.phase{font-size:.9rem;font-weight:600;vertical-align:middle;padding:2px 10px;border:1px solid;border-radius:99px}
.succeeded{color:var(--good)}.failed{color:var(--bad)}
section,.tiles>div{background:var(--card);border:1px solid var(--line);border-radius:8px}
section{padding:16px 18px;margin:14px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(172px,1fr));gap:12px;margin:16px 0}
.tiles>div{padding:10px 14px}dt{color:var(--dim);font-size:.82rem}
dd{margin:0;font-size:1.2rem;font-weight:600;overflow-wrap:anywhere}
dd small{display:block;font-size:.78rem;font-weight:400;color:var(--dim);line-height:1.35}
svg{display:block;width:100%;min-width:620px;height:auto}
.label{fill:var(--dim);font-size:12px;font-variant-numeric:tabular-nums}
.grid{stroke:var(--line);stroke-width:1}.mark{stroke:var(--lost);stroke-width:1.5;stroke-dasharray:4 3}
.curve{fill:none;stroke:var(--curve);stroke-width:2;stroke-linejoin:round}.dot{fill:var(--curve)}
rect{stroke:var(--card);stroke-width:1}
rect.queued{fill:var(--queued)}rect.starting{fill:var(--starting)}rect.productive{fill:var(--productive)}
rect.lost{fill:var(--lost)}rect.forgotten{fill:none;stroke:var(--queued);stroke-dasharray:3 3}
i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px}
i.queued{background:var(--queued)}i.starting{background:var(--starting)}i.productive{background:var(--productive)}
i.lost{background:var(--lost)}i.forgotten{border:1px dashed var(--queued)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:0 0 8px;padding:0;font-size:.85rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.86rem;margin-top:8px}
th,td{text-align:left;padding:4px 18px 4px 0;border-bottom:1px solid var(--line);vertical-align:top;
font-variant-numeric:tabular-nums}
thead th{color:var(--dim);font-weight:500}tbody th{font-weight:500;white-space:nowrap}
td:last-child{overflow-wrap:anywhere;min-width:9em}
details{margin-top:10px;font-size:.86rem}summary{cursor:pointer;color:var(--dim)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:10px 14px;font-size:.82rem}
footer{max-width:1040px;margin:0 auto;padding:0 20px 24px;color:var(--dim);font-size:.8rem}
@media print{:root{--ground:#fff;--card:#fff;--ink:#000;--dim:#444;--line:#ccc;--curve:#1f6fb5;--queued:#b9bdc4;
--starting:#e9b23c;--productive:#1f6fb5;--lost:#c4432b;--good:#1d7a45;--bad:#b3261e}
main{max-width:none;padding:0}svg{min-width:0}section{break-inside:avoid;margin:10px 0}body{font-size:12px}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
