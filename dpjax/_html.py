"""HTML of results in notebooks: one renderer, readable on light and on dark pages.

All texts are escaped. Colours are those of the page around it, or mixed from them: Jupyter, VS Code
and Colab set the colour of text by their theme. Sphinx themes made from pydata's give outputs a
pale background on dark pages, which is removed here.
"""

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# The classes of a table outweigh those of JupyterLab, which aligns cells to the right.
_STYLE = """
.dpjax-report{color:inherit;line-height:1.45;max-width:60rem;overflow-x:auto}
.text_html:has(>.dpjax-report){background:transparent!important;color:inherit!important;\
padding:0!important}
.dpjax-report h4{color:inherit;font-size:1.1em;font-weight:600;margin:.3em 0 .6em}
.dpjax-report caption,.dpjax-report summary,.dpjax-report .dpjax-heading{caption-side:top;\
color:inherit;font-size:inherit;font-style:normal;font-weight:600;margin:0;padding:.3em 0;\
text-align:left}
.dpjax-report summary{cursor:pointer}
.dpjax-report .dpjax-table{background:transparent;border:0;border-collapse:collapse;color:inherit;\
font-size:inherit;margin:0 0 .8em;table-layout:auto}
.dpjax-report .dpjax-table :is(thead,tbody) tr{background:transparent;border:0}
.dpjax-report .dpjax-table tr :is(th,td){background:transparent;border:0;color:inherit;\
border-top:1px solid color-mix(in srgb,currentColor 25%,transparent);\
font-weight:normal;max-width:none;padding:.25em 1em .25em 0;text-align:left;vertical-align:top;\
white-space:normal}
.dpjax-report .dpjax-table thead tr th{border-top:0;font-weight:600}
.dpjax-report .dpjax-pairs{width:100%}
.dpjax-report .dpjax-pairs tr th{opacity:.75;width:14em}
.dpjax-report .dpjax-columns tr td{font-variant-numeric:tabular-nums}
.dpjax-report ul{margin:0 0 .8em;padding-left:1.3em}
.dpjax-report li{margin:.15em 0}
@media(max-width:520px){
.dpjax-report .dpjax-pairs tr,.dpjax-report .dpjax-pairs tr :is(th,td){display:block;width:auto}
.dpjax-report .dpjax-pairs tr td{border-top:0;padding-top:0}
.dpjax-report .dpjax-columns{font-size:.85em}
.dpjax-report .dpjax-columns tr :is(th,td){padding-right:.6em}}
"""


class HTMLTable(NamedTuple):
    """A table of texts.

    Attributes:
      caption: above the table.
      rows: texts of the cells, as many in each row; the first is the row's heading.
      columns: headings of the columns; empty for pairs of a heading and a text.
      folded: whether a click on the caption opens the table.
    """

    caption: str
    rows: Sequence[Sequence[str]]
    columns: Sequence[str] = ()
    folded: bool = False


def render_html(
    title: str,
    tables: Iterable[HTMLTable],
    *,
    notes_heading: str = "",
    notes: Sequence[str] = (),
    enclosed_heading: str = "",
    enclosed_html: str = "",
) -> str:
    """Returns HTML of a title, tables and notes.

    Args:
      title: a heading.
      tables: below it, in order.
      notes_heading: of the notes.
      notes: sentences.
      enclosed_heading: of another result, which is folded below it.
      enclosed_html: HTML of that result, by this function.
    """
    blocks = [f"<style>{_STYLE}</style><h4>{html.escape(title)}</h4>"]
    blocks += [_render_table(table) for table in tables if table.rows]

    if notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        if notes_heading:
            blocks.append(f'<p class="dpjax-heading">{html.escape(notes_heading)}</p>')
        blocks.append(f"<ul>{items}</ul>")
    if enclosed_html:
        summary = f"<summary>{html.escape(enclosed_heading)}</summary>"
        blocks.append(f"<details>{summary}{enclosed_html}</details>")
    return f'<div class="dpjax-report">{"".join(blocks)}</div>'


def _render_table(table: HTMLTable) -> str:
    head = ""
    if table.columns:
        cells = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in table.columns)
        head = f"<thead><tr>{cells}</tr></thead>"
    body = "".join(map(_render_row, table.rows))

    caption = html.escape(table.caption)
    kind = "dpjax-table " + ("dpjax-columns" if table.columns else "dpjax-pairs")
    above = "" if table.folded or not caption else f"<caption>{caption}</caption>"
    rendered = f'<table class="{kind}">{above}{head}<tbody>{body}</tbody></table>'
    return (
        f"<details><summary>{caption}</summary>{rendered}</details>" if table.folded else rendered
    )


def _render_row(row: Sequence[str]) -> str:
    heading, *texts = map(html.escape, row)
    cells = "".join(f"<td>{text}</td>" for text in texts)
    return f'<tr><th scope="row">{heading}</th>{cells}</tr>'
