"""A reader of the report's HTML: nesting, attributes, references, and its tables by section."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.resources import files

VOID = {"meta", "link", "br", "hr", "img", "input", "base", "source"}
_REFERENCES = ("src", "href", "xlink:href", "srcset", "action", "poster", "data", "formaction")
SCRIPT = (files("ddtree.report") / "page.js").read_text(encoding="utf-8")
_PLACES = ("Context", "Concurrency", "Temperature", "Requests/s")
_CSS_REFERENCE = re.compile(
    r"@import|url\(\s*['\"]?(?!data:)|image-set\(|expression\(", re.IGNORECASE
)


@dataclass
class Element:
    """A start tag with everything read until its end."""

    tag: str
    attributes: dict[str, str]
    section: str
    text: str = ""

    @property
    def classes(self) -> set[str]:
        return set(self.attributes.get("class", "").split())


@dataclass
class Reader(HTMLParser):
    """All elements in document order; `faults` are tags that do not nest."""

    elements: list[Element] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        sections = [e.attributes.get("id", "") for e in self._open if e.tag == "section"]
        element = Element(tag, attributes, sections[-1] if sections else "")
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1].tag != tag:
            self.faults.append(f"</{tag}> closes {[e.tag for e in self._open][-3:]}")
            return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def close(self) -> None:
        super().close()
        self.faults.extend(f"<{e.tag}> never closed" for e in self._open)

    def all(self, tag: str, section: str = "", css: str = "") -> list[Element]:
        """Elements by tag, section and class; an empty argument takes any."""
        return [
            e
            for e in self.elements
            if (not tag or e.tag == tag)
            and (not section or e.section == section)
            and (not css or css in e.classes)
        ]

    def text(self, section: str) -> str:
        """What a section says, spaces folded."""
        found = [e for e in self.all("section") if e.attributes.get("id") == section]
        return " ".join(found[0].text.split())


def read(page: str) -> Reader:
    """Parse a whole page."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def external_references(page: str) -> list[str]:
    """Every place where the page would make a browser ask for something outside itself."""
    found = []
    for element in read(page).elements:
        for name, value in element.attributes.items():
            local = value.startswith(("#", "data:")) or value == ""
            if name in _REFERENCES and not local:
                found.append(f"<{element.tag} {name}={value}>")
            if name == "style" and _CSS_REFERENCE.search(value):
                found.append(f"<{element.tag} style={value}>")
        if element.tag == "script" and not is_own_script(element):
            found.append("<script>")
        if element.tag in ("iframe", "object", "embed", "base"):
            found.append(f"<{element.tag}>")
        if element.tag == "style" and _CSS_REFERENCE.search(element.text):
            found.append("<style>")
        if element.attributes.get("http-equiv", "").lower() == "refresh":
            found.append("<meta refresh>")
    return found


def is_own_script(element: Element) -> bool:
    """Whether a script is the page's data or the report's own script, to the letter."""
    if element.attributes.get("type") == "application/json":
        return "src" not in element.attributes and element.attributes.get("id") == "data"
    return element.attributes == {} and element.text == SCRIPT


def rows(reader: Reader, table: str) -> dict[tuple[str, str], list[str]]:
    """A data table's rows by id, as {(setting, arm): texts of the cells}, notes in the text.

    A setting reads `Context 900, concurrency 8`, with what else its columns hold.
    """
    found: dict[tuple[str, str], list[str]] = {}
    titles = [title for title, _ in _cells(reader, table, "col")]
    places = [title.lower() for title in titles if title in _PLACES]
    for arm, texts in _rows(reader, table):
        here = ", ".join(f"{name} {text}" for name, text in zip(places, texts, strict=False))
        found[here.capitalize(), arm] = texts[len(places) :]
    return found


def columns(reader: Reader, table: str) -> list[str]:
    """A data table's titles, without the arm's and the setting's."""
    titles = [title for title, _ in _cells(reader, table, "col")]
    return [title for title in titles[1:] if title not in _PLACES]


def _within(reader: Reader, table: str) -> list[Element]:
    """The elements of a table, from its start to the next table's."""
    start = next(
        (i for i, e in enumerate(reader.elements) if e.attributes.get("id") == table), None
    )
    if start is None:
        return []
    rest = reader.elements[start + 1 :]
    end = next((i for i, e in enumerate(rest) if e.tag in ("table", "section")), len(rest))
    return rest[:end]


def _cells(reader: Reader, table: str, scope: str) -> list[tuple[str, Element]]:
    return [
        (" ".join(e.text.split()), e)
        for e in _within(reader, table)
        if e.tag == "th" and e.attributes.get("scope") == scope
    ]


def _rows(reader: Reader, table: str) -> Iterator[tuple[str, list[str]]]:
    arm, texts = "", []
    for element in _within(reader, table):
        text = " ".join(element.text.split())
        if element.tag == "tr":
            if arm:
                yield arm, texts
            arm, texts = "", []
        elif element.tag == "th" and element.attributes.get("scope") == "row":
            arm = text
        elif element.tag == "td":
            texts.append(text)
    if arm:
        yield arm, texts
