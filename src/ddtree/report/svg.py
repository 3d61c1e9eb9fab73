"""matplotlib's SVG made fit to stand inside the page: themed, scoped, without outside names."""

import io
import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

_XLINK = "{http://www.w3.org/1999/xlink}href"
_HEX = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"\bfont[a-z-]*:[^;]*;?\s*")
_LONG = re.compile(r"-?\d+\.\d{3,}")
_DROPPED = {"metadata", "style"}


def inline_svg(figure: Figure, variables: dict[str, str], prefix: str, label: str) -> str:
    """Draw `figure` as an `<svg>` element for an HTML page.

    `variables` maps every colour used in the figure, as `#rrggbb`, to the name of a CSS custom
    property, so that the figure follows the page's theme; a colour without one raises KeyError.
    `prefix` makes element ids unique on the page. `label` is the text read in place of the
    picture.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _clean(root, variables, prefix)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "class": "plot",
        "role": "img",
        "aria-label": label,
    }
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _clean(element: ElementTree.Element, variables: dict[str, str], prefix: str) -> None:
    """Rewrite one element and all below it in place."""
    element.tag = element.tag.rpartition("}")[2]
    element.tail = None
    if element.tag != "text":
        element.text = None
    attributes = dict(element.attrib)
    element.attrib.clear()
    for name, value in attributes.items():
        if name == "id":
            element.set("id", f"{prefix}-{value}")
        elif name == _XLINK:
            element.set("href", f"#{prefix}-{value.removeprefix('#')}")
        elif name == "style":
            element.set("style", _style(value, variables))
        else:
            element.set(name.rpartition("}")[2], _LONG.sub(_hundredth, value))
    for child in list(element):
        if child.tag.rpartition("}")[2] in _DROPPED:
            element.remove(child)
        else:
            _clean(child, variables, prefix)


def _hundredth(found: re.Match[str]) -> str:
    """A coordinate to a hundredth of a point, which no screen tells from more."""
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _style(style: str, variables: dict[str, str]) -> str:
    """Named colours, and no font: the page's style sheet sets one that suits the screen."""
    return _FONT.sub("", _HEX.sub(lambda match: f"var(--{variables[match[0]]})", style))
