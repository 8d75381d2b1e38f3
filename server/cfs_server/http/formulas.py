"""Formulas in LaTeX as MathML, which browsers show without a script, a font or a request.

The converter passes what is written on as it is: `\\text{<script>}` becomes an element, `\\href` and `\\style` become
attributes. So its tree is made anew here, of the elements and attributes that are listed, with all else as text.
"""

import html
import re
from xml.etree.ElementTree import Element, tostring

from latex2mathml.converter import convert_to_element

LONGEST = 2_000
"""Characters of a formula. A longer one is shown as it is written."""

_PRESENTATION = {"displaystyle", "scriptlevel", "mathvariant"}
_SPACING = {"width", "height", "depth", "lspace", "rspace", "voffset"}
ATTRIBUTES: dict[str, set[str]] = {
    "math": {"display"},
    "mi": _PRESENTATION,
    "mn": _PRESENTATION,
    "mo": _PRESENTATION
    | {"accent", "fence", "form", "lspace", "maxsize", "minsize", "movablelimits", "rspace", "separator", "stretchy"},
    "mtext": _PRESENTATION,
    "mspace": _SPACING | {"linebreak"},
    "mrow": _PRESENTATION,
    "mstyle": _PRESENTATION,
    "mpadded": _SPACING,
    "mphantom": set(),
    "menclose": {"notation"},
    "mfrac": {"linethickness"},
    "msqrt": set(),
    "mroot": set(),
    "msub": set(),
    "msup": set(),
    "msubsup": set(),
    "mmultiscripts": set(),
    "mover": {"accent"},
    "munder": {"accentunder"},
    "munderover": {"accent", "accentunder"},
    "mtable": {"columnalign", "columnlines", "columnspacing", "displaystyle", "rowlines", "rowspacing"},
    "mtr": set(),
    "mtd": {"columnalign"},
}
"""The elements of a formula, and their attributes."""

_VALUE = re.compile(r"(?!.*\d{3})[A-Za-z0-9.+% -]{1,40}")
"""A value of an attribute. Lengths have no more than two digits, so that no formula covers the page."""
_SAME = {"aligned": "split", "alignedat": "split", "gather": "matrix", "gathered": "matrix", "dcases": "cases"}
"""Environments that the converter does not know, and those that look the same."""
_ENVIRONMENT = re.compile(r"\\(begin|end)\{([a-z]+)\*?\}")


def to_mathml(latex: str, *, display: bool) -> str | None:
    """Return a formula as MathML, for a line of its own or within one; None if it cannot be read, or is too long."""
    if len(latex) > LONGEST or not latex.strip():
        return None
    try:
        tree = convert_to_element(_with_known_environments(latex), display="block" if display else "inline")
        return tostring(_clean(tree), encoding="unicode")
    except Exception:  # noqa: BLE001 - the converter raises errors of all kinds: it is shown as it is written
        return None


def _with_known_environments(latex: str) -> str:
    return _ENVIRONMENT.sub(
        lambda match: f"\\{match[1]}{{{_SAME[match[2]]}}}" if match[2] in _SAME else match[0], latex
    )


def _clean(node: Element) -> Element:
    """Return the same element with nothing but what is listed. Raises `ValueError` for what was not understood."""
    if node.tag not in ATTRIBUTES:
        raise ValueError(f"{node.tag} is no element of a formula")
    text = html.unescape(node.text or "")
    if text == "&" or text.startswith(r"\begin"):
        raise ValueError("the formula has an environment that is not known")
    allowed = ATTRIBUTES[node.tag]
    cleaned = Element(
        node.tag, {key: value for key, value in node.items() if key in allowed and _VALUE.fullmatch(value)}
    )
    cleaned.text = text
    cleaned.extend(map(_clean, node))
    return cleaned
