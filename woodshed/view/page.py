"""Style sheet of all HTML pages."""

from __future__ import annotations

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:#1c2024;background:#fff}
table{border-collapse:collapse}td,th{padding:.25em .9em .25em 0;text-align:left;border-bottom:1px solid #e4e7eb}
.figure{white-space:nowrap}.wide{overflow-x:auto}.wide td:first-child{min-width:11em}
table+table,table+.row{margin-top:1.2em}
.row{display:flex;gap:2em;flex-wrap:wrap}.half{flex:1 1 440px;min-width:0}h2{margin-top:2em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;
margin:.3em 0;padding:.4em .7em;border-radius:6px;background:#f4f5f7;font-size:12.5px}
pre.assistant{background:#e8f1ff}pre.user{background:#fff6dd}.verdict{font-weight:600}.good{color:#13733c}.bad{color:#b3261e}
small{color:#667}svg{max-width:100%;height:auto}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#e3e5e8}pre{background:#22262b}pre.assistant{background:#1d2b40}
pre.user{background:#37311d}td,th{border-color:#333}.good{color:#5cc98a}.bad{color:#f08078}
svg{filter:invert(.88) hue-rotate(180deg)}}
"""
"""Style sheet; follows the reader's light or dark mode."""
