"""Numbers in prose, as exact fractions."""

import re
from fractions import Fraction

_DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)|\d+)"
_SIGN = r"(?:(?<![\w.)\]])[-+\u2212\u2013]\s?)?"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d+)?|(?<![\w.])\.\d+)"
NUMBER = re.compile(
    rf"(?P<sign>{_SIGN})(?:\\?\$\s?)?(?:\\[dt]?frac\{{(?P<over>-?{_DIGITS})\}}\{{(?P<under>{_DIGITS})\}}"
    rf"|(?P<above>{_DECIMAL})(?:\s?/\s?(?P<below>{_DIGITS})(?![\d/]))?)"
)


def _read(text: str) -> Fraction:
    return Fraction(re.sub(r"[^\d.-]", "", text))


def value_of(match: re.Match[str]) -> Fraction:
    """The number that `NUMBER` found; a fraction over zero is its upper part."""
    above, below = _read(match["over"] or match["above"]), _read(match["under"] or match["below"] or "1")
    value = above / below if below else above
    return -value if match["sign"].strip() in ("-", "\u2212", "\u2013") else value


def numbers(text: str) -> list[Fraction]:
    """All numbers of a text, in order: 1,234.5 and $7, 3/4, \\frac{3}{4}, -2; signs and units aside."""
    return [value_of(match) for match in NUMBER.finditer(text)]
