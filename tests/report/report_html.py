"""A reader of the report's HTML: nesting, attributes, references, and its tables by section."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "base", "source"}
_REFERENCES = ("src", "href", "xlink:href", "srcset", "action", "poster", "data", "formaction")
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
        if element.tag in ("script", "iframe", "object", "embed", "base"):
            found.append(f"<{element.tag}>")
        if element.tag == "style" and _CSS_REFERENCE.search(element.text):
            found.append("<style>")
        if element.attributes.get("http-equiv", "").lower() == "refresh":
            found.append("<meta refresh>")
    return found


def rows(reader: Reader, section: str) -> dict[tuple[str, str], list[str]]:
    """A grouped table's rows, as {(setting, arm): texts of the cells}, notes in the text."""
    table: dict[tuple[str, str], list[str]] = {}
    group, current = "", []
    for element in reader.elements:
        if element.section != section:
            continue
        text = " ".join(element.text.split())
        scope = element.attributes.get("scope")
        if element.tag == "th" and scope == "rowgroup":
            group = text
        elif element.tag == "th" and scope == "row":
            current = table.setdefault((group, text), [])
        elif element.tag == "td":
            current.append(text)
    return table
