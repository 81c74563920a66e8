"""Pages of the reproduction report, from the committed records in ``docs/reproduction``."""

import html
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.lib import tables
from experiments.lib.figures import save_figure
from experiments.lib.formatting import format_value, label
from experiments.lib.plots import draw_published_against_measured
from experiments.lib.publication import load_publication
from experiments.lib.registry import PROFILES, Experiment, Finding
from experiments.lib.report import AGREEMENT_CAPTION, Block

DOCS = Path(__file__).parent
FOLDER = DOCS / "reproduction"
BUILT = DOCS.parent / "build" / "docs"
# Characters in a line of a table in a window of 1,400 pixels, and those that the space between two
# columns takes. The first column, of names, is at least so wide.
_LINE, _BETWEEN, _NAMES = 154, 2, 16
# A column of a table: its group, its heading and its cells.
Column = tuple[str, str, Sequence[str]]


def write_pages(modules: Mapping[str, Experiment], folder: Path = FOLDER) -> str:
    """Writes one page for each experiment, by the dotted path of its module, beside the records.

    Returns:
      Markdown with the findings of all experiments and the table of contents of their pages.
    """
    experiments = list(modules.values())
    blocks = {experiment.name: load_blocks(experiment, folder) for experiment in experiments}
    pages = {
        folder / f"{experiment.name}.md": render_page(module, experiment, blocks[experiment.name])
        for module, experiment in modules.items()
    }
    for path in folder.glob("*.md"):
        if path not in pages and path.stem != "index":
            path.unlink()
    for path, text in pages.items():
        # An unchanged page is not read again by the next build.
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
    contents = ["```{toctree}", ":hidden:", "", *blocks, "```"]
    parts = [
        render_overview([block for each in blocks.values() for block in each]),
        render_findings(experiments, blocks),
        "## Figures",
        render_gallery(experiments, blocks),
        "\n".join(contents),
    ]
    return "\n\n".join(parts) + "\n"


def load_blocks(experiment: Experiment, folder: Path = FOLDER) -> tuple[Block, ...]:
    """Returns one block for each profile with committed records of the present settings."""
    blocks = []
    for profile in PROFILES:
        publication = load_publication(folder, experiment.name, profile)
        lines = tables.table_lines(experiment, profile, publication.records)
        finished = tables.finished_records(lines)
        if finished:
            finding, remarks = experiment.finding(finished), tuple(experiment.remarks(finished))
            blocks.append(Block(profile, lines, (finding,), remarks, publication.figures))
    return tuple(blocks)


def render_overview(blocks: Sequence[Block]) -> str:
    """Draws the published values against ours, and returns the figure."""
    records = [record for block in blocks for record in block.finished]
    figure = draw_published_against_measured(records, rows=1, width=9.6, height=4.0)
    if figure is None:
        return ""
    BUILT.mkdir(parents=True, exist_ok=True)
    path = BUILT / "published_against_measured.png"
    save_figure(figure, path)
    return _figure(os.path.relpath(path, FOLDER), 920, AGREEMENT_CAPTION)


def _figure(source: str, width: int, caption: str) -> str:
    """Returns a MyST figure, with its width in pixels."""
    text = escape(caption)
    return f"```{{figure}} {source}\n:width: {width}px\n:alt: {text}\n\n{text}\n```"


def render_gallery(experiments: Sequence[Experiment], blocks: Mapping[str, Sequence[Block]]) -> str:
    """Returns a grid with the first figure of each experiment, linked to its page."""
    cards = []
    for experiment in experiments:
        figures = [figure for block in blocks[experiment.name][-1:] for figure in block.figures]
        if figures:
            title = escape(experiment.page.title)
            image = f"![{title}](figures/{figures[0].path.name})"
            cards.append(f"[{image}]({experiment.name}.md)\n\n[{title}]({experiment.name}.md)")
    inner = (f":::{{container}} tile\n{card}\n:::" for card in cards)
    return "::::{container} gallery\n" + "\n\n".join(inner) + "\n::::"


def render_findings(
    experiments: Sequence[Experiment], blocks: Mapping[str, Sequence[Block]]
) -> str:
    """Returns the table of the findings of each experiment, by profile."""
    rows = []
    for experiment in experiments:
        name, source = f"[{experiment.name}]({experiment.name}.md)", escape(experiment.page.source)
        # The profiles by finding: where all settings are the same, so is the finding.
        profiles: dict[Finding, list[str]] = {}
        for block in blocks[experiment.name]:
            done, count = len(block.finished), len(block.lines)
            profile = block.profile if done == count else f"{block.profile}, {done} of {count} rows"
            profiles.setdefault(block.findings[0], []).append(profile)
        for finding, names in profiles.items():
            text = f"**{finding.verdict.capitalize()}.** {escape(finding.sentence)}"
            rows.append([name, source, " and ".join(names), text, finding.tolerance or "–"])
            name, source = "", ""
        if not profiles:
            rows.append([name, source, "–", "Not run.", "–"])
    heading = ["experiment", "source", "profile", "finding", "figures within"]
    return f"{_count_rows(blocks)}\n\n{list_table([heading], rows)}"


def _count_rows(blocks: Mapping[str, Sequence[Block]]) -> str:
    """Returns a sentence with the number of experiments that have records, by profile."""
    whole = Counter(
        (block.profile, len(block.finished) == len(block.lines))
        for each in blocks.values()
        for block in each
    )
    counts = (
        f"the {profile} profile of {whole[profile, True]} in full and of {whole[profile, False]} in"
        " part"
        for profile in PROFILES
    )
    return f"Of {len(blocks)} experiments, records hold {' and '.join(counts)}."


def render_page(module: str, experiment: Experiment, blocks: Sequence[Block]) -> str:
    """Returns the page of one experiment: findings, table, and what a reader needs to repeat it."""
    path = f"{module.replace('.', '/')}.py"
    parts = [
        # The table takes the room of the page's contents.
        "---\nhtml_theme.sidebar_secondary.remove: true\n---",
        f"# {escape(experiment.page.title)}",
        f"{escape(experiment.page.source)}. Module: {{download}}`{path} <../../{path}>`.",
        *map(render_finding, blocks),
    ]
    run = {block.profile for block in blocks}
    parts += [f"**{each.capitalize()} profile: not run.**" for each in PROFILES if each not in run]
    if blocks:
        parts += [render_results(blocks), render_commands(experiment, blocks)]
    parts += ["## What was run", escape("\n\n".join(experiment.page.paragraphs))]
    for block in blocks:
        parts += render_block(experiment, block)
    return "\n\n".join(parts) + "\n"


def render_finding(block: Block) -> str:
    """Returns the finding of one profile, with its tolerance and the rows without a record."""
    (finding,) = block.findings
    parts = [f"**{block.profile.capitalize()} profile: {finding.verdict}.**"]
    parts.append(escape(finding.sentence))
    missing = [line.row.name for line in block.lines if line.state != "done"]
    if missing:
        parts.append(f"Without a record: {escape('; '.join(missing))}.")
    return " ".join(parts)


def render_results(blocks: Sequence[Block]) -> str:
    """Returns the table of results: source, measured and certified, all profiles side by side.

    A column whose values are the same under every profile that has the row is shown once. A table
    that is too wide for the page is transposed, with a column for each row of the source and the
    names of the groups in lines of their own, or cut into tables of the same rows, one below the
    other: what makes fewer of them.
    """
    by_row = [{line.row.name: line for line in block.lines} for block in reversed(blocks)]
    rows = list(dict.fromkeys(name for lines in by_row for name in lines))
    columns: list[Column] = [
        (group, heading, cells)
        for group in tables.GROUPS
        for heading, cells in _group_columns(blocks, group, rows)
    ]
    for block in blocks:
        times = {line.row.name: line.outcome.splitlines()[0] for line in block.lines}
        cells = [escape(times.get(row, "no row")) for row in rows]
        columns.append(("run", f"time, {block.profile}", cells))
    names: Column = ("", "row", [escape(row) for row in rows])
    upright = cut_table([names, *columns])
    if len(upright) == 1:
        return "\n\n".join(upright)

    # Transposed: a line for each column, and for each name of a group.
    lines: list[list[str]] = []
    for number, (group, heading, cells) in enumerate(columns):
        if group and (not number or group != columns[number - 1][0]):
            lines.append([f"**{group}**", *[""] * len(rows)])
        lines.append([heading, *cells])
    headings, *by_row_name = zip(*lines, strict=True)
    transposed = cut_table(
        [("", "row", headings)]
        + [("", escape(row), cells) for row, cells in zip(rows, by_row_name, strict=True)]
    )
    return "\n\n".join(min(upright, transposed, key=len))


def cut_table(columns: Sequence[Column]) -> list[str]:
    """Returns tables that fit the page, of the same rows: each begins with the first column.

    Of several, a table leaves out the rows of which it has no value.
    """
    first, *others = columns
    parts: list[list[Column]] = [[]]
    room = 0
    for column in others:
        width = _width(column)
        if room < width:
            if parts[-1]:
                parts.append([])
            room = _LINE - max(_width(first), _NAMES)
        parts[-1].append(column)
        room -= width
    if len(parts) == 1:
        return [_table([first, *others])]
    return [_table(_without_empty_rows([first, *part])) for part in parts]


def _without_empty_rows(columns: Sequence[Column]) -> list[Column]:
    _, *others = columns
    values = zip(*(cells for _, _, cells in others), strict=True)
    shown = [any(cell != "–" for cell in row) for row in values]
    return [
        (group, heading, list(itertools.compress(cells, shown)))
        for group, heading, cells in columns
    ]


def _width(column: Column) -> int:
    """Returns the characters that a column needs: those of its longest word, and a space."""
    _, heading, cells = column
    words = re.split(r"[\s-]", " ".join([heading, *cells]))
    return max(len(re.sub(r"[\\`*]", "", word)) for word in words) + _BETWEEN


def _table(columns: Sequence[Column]) -> str:
    """Returns the table of columns, with a line of the groups' names where there are any."""
    groups, headings, cells = zip(*columns, strict=True)
    names = [
        group if not number or group != groups[number - 1] else ""
        for number, group in enumerate(groups)
    ]
    heading = [names, headings] if any(names) else [headings]
    return list_table(heading, zip(*cells, strict=True))


def _group_columns(
    blocks: Sequence[Block], group: str, rows: Sequence[str]
) -> Iterable[tuple[str, list[str]]]:
    """Returns the heading and the cells of every column of a group, in order of appearance."""
    by_row = {block.profile: {line.row.name: line for line in block.lines} for block in blocks}
    columns = tables.table_columns([line for block in blocks for line in block.lines], group)
    for column in columns if columns[0].name else ():
        by_profile = {
            profile: [
                tables.table_cells(lines[row], group, [column])[0] if row in lines else None
                for row in rows
            ]
            for profile, lines in by_row.items()
        }
        known = [
            list(dict.fromkeys(filter(None, cells)))
            for cells in zip(*by_profile.values(), strict=True)
        ]
        heading = escape(label(column.name))
        # A row that only one profile has does not separate the profiles, one not run does.
        if group == "source" or all(len(cells) == 1 for cells in known):
            yield heading, [escape(cells[0]) for cells in known]
            continue
        for profile, values in by_profile.items():
            if set(values) - {"–", None}:
                yield f"{heading}, {profile}", [escape(value or "–") for value in values]


def render_commands(experiment: Experiment, blocks: Sequence[Block]) -> str:
    """Returns the command that repeats a row, and the tolerance of the repetition."""
    block, tolerance = blocks[-1], experiment.tolerance
    row = block.finished[0].row
    return (
        "This command runs one row again and compares its figures with those of the table:\n\n"
        f"```sh\n.venv/bin/python -m experiments check {experiment.name} --profile"
        f' {block.profile} --row "{row}"\n```\n\n'
        f"It allows differences of {tolerance.points:g} points in measured percentages, a relative"
        f" {tolerance.relative:g} in other measured values, and a relative {tolerance.account:g} in"
        " certified values and in accounts by formula."
    )


def render_block(experiment: Experiment, block: Block) -> list[str]:
    """Returns remarks, figures, settings, notes and certificates of one profile."""
    profile, finished = block.profile, block.finished
    parts = [f"## {profile.capitalize()} profile"]
    parts += ["\n".join(f"- {escape(remark)}" for remark in block.remarks)]
    for figure in block.figures:
        parts.append(_figure(f"figures/{figure.path.name}", figure.width, figure.caption))
    shared = tables.shared_settings([line.row for line in block.lines])
    if shared:
        items = (
            f"{escape(label(name))} {escape(format_value(value, name))}"
            for name, value in shared.items()
        )
        parts.append(f"Settings of every row: {'; '.join(items)}.")
    columns = [
        each
        for each in tables.table_columns(block.lines, "settings")
        if each.name and each.name not in shared
    ]
    if columns:
        heading = ["settings of row", *(escape(label(each.name)) for each in columns)]
        cells = [
            [line.row.name, *tables.table_cells(line, "settings", columns)] for line in block.lines
        ]
        by_column = zip(*(map(escape, row) for row in cells), strict=True)
        parts += cut_table([("", *column) for column in zip(heading, by_column, strict=True)])
    parts.append(f"Run with {_join_versions(block)}.")
    for note in block.notes:
        rows = "; ".join(record.row for record in finished if record.note == note)
        of = "" if all(record.note == note for record in finished) else f"Rows {rows}: "
        parts.append(escape(f"{of}{note}"))
    for record in finished:
        if record.certificate:
            parts.append(
                '<details class="certificate"><summary>Certificate of row'
                f" {html.escape(record.row)}</summary>\n\n```text\n{record.certificate}"
                "\n```\n\n</details>"
            )
    return [part for part in parts if part]


def _join_versions(block: Block) -> str:
    """Returns the versions and days of a block's runs, each once."""
    runs = {", ".join(map(" ".join, record.versions.items())) for record in block.finished}
    days = sorted({record.date for record in block.finished})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{'; '.join(sorted(runs))} ({span})"


def list_table(heading: Sequence[Sequence[str]], rows: Iterable[Sequence[str]]) -> str:
    """Returns a MyST list-table of Markdown cells."""
    lines = ["```{list-table}", f":header-rows: {len(heading)}", ":class: results", ""]
    for row in (*heading, *rows):
        lines += [f"{'  -' if number else '* -'} {cell}" for number, cell in enumerate(row)]
    return "\n".join([*lines, "```"])


def escape(text: str) -> str:
    """Escapes characters with a meaning in Markdown.

    >>> escape("sup |f − G| at [0, 1]*")
    'sup |f − G| at \\\\[0, 1\\\\]\\\\*'
    """
    literals = re.split(r"(`[^`\n]+`)", text)  # literals are the parts with an odd index
    literals[::2] = [re.sub(r"([\\`*_{}\[\]<>#$])", r"\\\1", part) for part in literals[::2]]
    return "".join(literals)
