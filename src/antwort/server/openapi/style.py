"""How the page looks. No font, picture or script is fetched for it."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--back:#fff;--ink:#1c2024;--soft:#5d6673;--line:#dfe3e8;--fill:#f5f7f9;--link:#0b62c4;
--get:#0f6e4f;--post:#0b62c4;--delete:#b3261e}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--ink:#e6e9ec;--soft:#9aa4b0;--line:#30363d;--fill:#1c2126;
--link:#6cb0ff;--get:#56c596;--post:#6cb0ff;--delete:#ff8a80}}
*{box-sizing:border-box}
html{scroll-padding-top:1rem}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
a{color:var(--link);text-decoration:none}a:hover,a:focus{text-decoration:underline}
code,pre{font:.875em/1.5 ui-monospace,Menlo,Consolas,monospace}
code{overflow-wrap:anywhere}
pre{background:var(--fill);border:1px solid var(--line);border-radius:6px;padding:.75rem 1rem;overflow-x:auto}
.page{display:grid;grid-template-columns:17rem minmax(0,1fr);max-width:82rem;margin:auto}
nav{position:sticky;top:0;align-self:start;max-height:100vh;overflow-y:auto;padding:1.5rem 1rem;font-size:.875rem;
border-right:1px solid var(--line)}
nav ul{list-style:none;margin:.25rem 0 1rem;padding:0}nav li{padding:.1rem 0}
nav summary,nav b{color:var(--soft);font-weight:600}
main{padding:1.5rem 2rem 6rem;min-width:0}
h1{margin:.25rem 0;font-size:1.75rem}h2{margin:3rem 0 .5rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
h3{margin:2.25rem 0 .25rem;font-size:1.05rem;overflow-wrap:anywhere}h4{margin:1.25rem 0 .25rem;font-size:.9rem}
.soft{color:var(--soft)}.get{color:var(--get)}.post{color:var(--post)}.delete{color:var(--delete)}
.method{font:700 .8rem ui-monospace,Menlo,Consolas,monospace}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;vertical-align:top;padding:.4rem .75rem .4rem 0;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}td:first-child{white-space:nowrap}
.need{color:var(--delete);font-size:.8rem}
:target{background:var(--fill);outline:4px solid var(--fill)}
@media (max-width:48rem){.page{display:block}nav{position:static;max-height:none;border-right:0;
border-bottom:1px solid var(--line)}main{padding:1rem 1rem 4rem}
table,tbody,tr,td{display:block}thead{display:none}tr{padding:.5rem 0;border-bottom:1px solid var(--line)}
td{border:0;padding:.1rem 0}td:first-child{white-space:normal}}
"""
