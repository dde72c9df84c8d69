"""Plain values between two processes that do not trust each other.

Only values of exact built-in types, and these types themselves, arrive at the other end, so a value that answers `==`
in its own way cannot travel. Anything else stays where it is and travels as a reference: a number and the name of its
type.
"""

import builtins
import datetime
import json
import os
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST = 32 * 2**20  # bytes of a message

# What a subclass travels as: an OrderedDict as a dict, a named tuple as a tuple.
_BASES: tuple[type, ...] = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_VIEWS: dict[type, str] = {type({}.keys()): "set", type({}.items()): "set"}  # compare like sets
_WRITTEN: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    int: (hex, lambda text: int(text, 16)),
    float: (float.hex, float.fromhex),
    complex: (
        lambda value: [value.real.hex(), value.imag.hex()],
        lambda parts: complex(*map(float.fromhex, parts)),
    ),
    str: (str, str),
    bytes: (bytes.hex, bytes.fromhex),
    bytearray: (bytearray.hex, bytearray.fromhex),
    range: (lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    Fraction: (str, Fraction),
    Decimal: (str, Decimal),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.time: (datetime.time.isoformat, datetime.time.fromisoformat),
}
_READ = {kind.__name__: read for kind, (_, read) in _WRITTEN.items()}
_COLLECTIONS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class Closed(Exception):
    """The other process has gone, or does not keep to the protocol."""


def encode(value: Any, keep: Callable[[Any], list[Any]]) -> Any:
    """A value as JSON.

    Args:
        value: what travels.
        keep: called with everything that is no plain value; gives what travels in its place.

    Raises:
        RecursionError: if the value holds itself, or is nested too deeply.
    """
    kind: type = type(value)
    if value is None or kind is bool:
        return value
    if kind in _WRITTEN:
        return [kind.__name__, _WRITTEN[kind][0](value)]
    if kind in (list, tuple, set, frozenset):
        return [kind.__name__, [encode(part, keep) for part in value]]
    if kind in _VIEWS:
        return [_VIEWS[kind], [encode(part, keep) for part in value]]
    if kind is type and vars(builtins).get(name := type.__getattribute__(value, "__name__")) is value:
        return ["type", name]
    if kind is dict:
        return ["dict", [[encode(key, keep), encode(part, keep)] for key, part in value.items()]]
    base = next((base for base in _BASES if isinstance(value, base)), None)
    if base is None:
        return keep(value)
    return encode(base(value), keep)


def decode(data: Any, find: Callable[[list[Any]], Any]) -> Any:
    """The value of what `encode` gave.

    Args:
        data: JSON.
        find: called with what `keep` gave; gives what stands in its place here.

    Raises:
        Closed: if it is nothing that `encode` gives.
    """
    if data is None or isinstance(data, bool):
        return data
    try:
        kind, content = data[0], data[1]
        if kind in _READ:
            return _READ[kind](content)
        if kind in _COLLECTIONS:
            return _COLLECTIONS[kind]([decode(part, find) for part in content])
        if kind == "dict":
            return {decode(key, find): decode(part, find) for key, part in content}
        if kind == "type" and isinstance(vars(builtins)[content], type):
            return vars(builtins)[content]
        if kind in ("ref", "name"):
            return find(data)
    except (TypeError, ValueError, LookupError, RecursionError) as error:
        raise Closed(f"a value that cannot be read: {type(error).__name__}") from None
    raise Closed("a value that cannot be read")


class Wire:
    """Messages over two pipes: four bytes of length, then JSON."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer

    def send(self, message: Any) -> None:
        """Send one message.

        Raises:
            Closed: if nobody listens any more.
            ValueError: if the message is too large.
        """
        data = json.dumps(message).encode("ascii")
        if len(data) > LARGEST:
            raise ValueError(f"a value of {len(data)} bytes, where {LARGEST} are the most")
        data = struct.pack("<I", len(data)) + data
        while data:
            try:
                data = data[os.write(self.writer, data) :]
            except OSError:
                raise Closed("nobody listens") from None

    def receive(self) -> Any:
        """Wait for one message.

        Raises:
            Closed: if the other end has gone, or sends no message.
        """
        (length,) = struct.unpack("<I", self._read(4))
        if length > LARGEST:
            raise Closed(f"a message of {length} bytes; at most {LARGEST}")
        try:
            return json.loads(self._read(length))
        except (ValueError, RecursionError):
            raise Closed("a message that is no JSON") from None

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = os.read(self.reader, min(count, 2**16))
            if not part:
                raise Closed("the other process has gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
