"""The renderer of results in notebooks: structure, escaping, and colours of the page around it."""

import re
from html.parser import HTMLParser

import pytest

from dpjax._html import HTMLTable, render_html

SCRIPT = "<script>alert('x')</script> & \"quotes\""
VOID = {"br", "hr", "img"}


class Structure(HTMLParser):
    """The open elements of a page, which must be closed in order, and its texts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("columns", [(), (SCRIPT, SCRIPT)])
def test_render_html_escapes_all_texts(columns, folded):
    table = HTMLTable(SCRIPT, [(SCRIPT, SCRIPT)], columns, folded)
    inner = render_html(SCRIPT, [table])
    page = render_html(
        SCRIPT,
        [table],
        notes_heading=SCRIPT,
        notes=[SCRIPT],
        enclosed_heading=SCRIPT,
        enclosed_html=inner,
    )
    structure = Structure(page)
    assert "script" not in structure.tags
    # Title, caption and cells twice, headings of notes and of the enclosed result, one note.
    assert structure.texts.count(SCRIPT) == 2 * (4 + len(columns)) + 3


def test_render_html_structure():
    pairs = HTMLTable("Pairs", [("a", "1"), ("b", "2")])
    wide = HTMLTable("Wide", [("a", "1", "2")], ("name", "low", "high"), folded=True)
    empty = HTMLTable("Empty", [])
    structure = Structure(render_html("Title", [pairs, wide, empty], notes=["one"]))
    assert structure.tags.count("table") == 2
    assert structure.tags.count("caption") == structure.tags.count("summary") == 1
    assert structure.tags.count("tr") == 3 + 1
    assert structure.tags.count("th") == 3 + 3
    assert structure.tags.count("li") == 1
    assert "Empty" not in structure.texts


def test_render_html_takes_colours_from_the_page():
    style = re.search(r"<style>(.*?)</style>", render_html("t", []), re.DOTALL)[1]
    colours = re.findall(r"(?<![\w-])(?:color|background|border|border-top):([^;}]+)", style)
    assert colours
    for colour in colours:
        assert "currentColor" in colour or colour.split("!")[0] in ("inherit", "transparent", "0")
