"""Names and specs: `"threshold(threshold=0.9)"` becomes an object, and everybody reads the same list.

A stranger's package joins through an entry point of the group named in `Registry.group`.
"""

import ast
import dataclasses
import difflib
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from unmask.errors import PluginError, RequestError, UnknownNameError

Part = TypeVar("Part")

_SPEC = re.compile(r"\s*([A-Za-z][\w.+-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_FIELD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)


class Registry(Mapping[str, type[Part]], Generic[Part]):
    """A dictionary from public names to classes, ours first, then those of installed plug-ins.

    Args:
        kind: what the entries are, for messages ("decoder").
        group: entry-point group of plug-ins ("unmask.decoders").
        own: the project's own classes.
        base: class that every entry must derive from.
    """

    def __init__(self, kind: str, group: str, own: dict[str, type[Part]], base: type[Part]) -> None:
        self.kind, self.group, self._own, self._base = kind, group, own, base

    @cached_property
    def _entries(self) -> dict[str, type[Part]]:
        found = dict(self._own)
        for point in entry_points(group=self.group):
            package = point.dist.name if point.dist else point.value
            what, way_out = f'plug-in {self.kind} "{point.name}"', f'Repair or uninstall the package "{package}".'
            try:
                part = point.load()
            except Exception as error:  # whatever a stranger's module raises when it is imported
                raise PluginError(f"{what} cannot be loaded: {type(error).__name__}: {error}. {way_out}") from error
            if not (isinstance(part, type) and issubclass(part, self._base) and dataclasses.is_dataclass(part)):
                wanted = f"a dataclass derived from {self._base.__name__}"
                raise PluginError(f"{what} must be {wanted}: got {part!r} from {point.value}. {way_out}")
            if point.name in self._own:
                raise PluginError(f"{what} ({point.value}) would hide the built-in one. {way_out}")
            found[point.name] = part  # type: ignore[assignment]
        return found

    def __getitem__(self, name: str) -> type[Part]:
        if name not in self._entries:
            raise UnknownNameError(self.kind, name, self._entries)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def make(self, spec: str | Part) -> Part:
        """Build the object a spec describes; an object passes through.

        Raises:
            UnknownNameError: no such name.
            RequestError: not a spec, an unknown field, or a value the class refuses.
        """
        if isinstance(spec, self._base):
            return spec
        if not isinstance(spec, str):
            raise RequestError(f"{self.kind} must be a spec or a {self._base.__name__}: got {spec!r}")
        match = _SPEC.fullmatch(spec)
        if match is None:
            raise RequestError(f'cannot read the {self.kind} spec "{spec}"; write it like "{self._example()}"')
        name, inside = match.group(1), match.group(2)
        part = self[name]
        holds = [field.name for field in dataclasses.fields(part) if self._nests(field.type)]  # type: ignore[arg-type]
        options = self._options(spec, name, inside or "", holds)
        known = {field.name for field in dataclasses.fields(part)}  # type: ignore[arg-type]
        for option in options:
            if option not in known:
                close = difflib.get_close_matches(option, known, n=1)
                hint = f' Did you mean "{close[0]}"?' if close else ""
                allowed = ", ".join(sorted(known)) or "none"
                raise RequestError(f'{self.kind} "{name}" has no field "{option}"; fields: {allowed}.{hint}')
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            if field.name in holds and options.get(field.name) is not None:
                options[field.name] = self.make(options[field.name])
            elif field.name in options:
                _check_type(f'{self.kind} "{name}": field "{field.name}"', field.type, options[field.name])
                if field.type is float:
                    options[field.name] = float(options[field.name])
        try:
            return part(**options)
        except (TypeError, ValueError) as error:
            raise RequestError(f'{self.kind} "{spec}": {error}') from None

    def _nests(self, declared: Any) -> bool:
        """Does a field of this type hold another part of the same kind?"""
        return declared is self._base or self._base in typing.get_args(declared)

    def _options(self, spec: str, name: str, inside: str, holds: list[str]) -> dict[str, Any]:
        """Fields of a spec; parts inside parts stay specs, and may stand without the name of their field."""
        options: dict[str, Any] = {}
        try:
            for piece in _pieces(inside):
                named = _FIELD.fullmatch(piece)
                if named is None:
                    free = [field for field in holds if field not in options]
                    if not free:
                        raise RequestError(f'{self.kind} spec "{spec}": name every field, like "{self._example(name)}"')
                    field, text = free[0], piece
                else:
                    field, text = named.group(1), named.group(2)
                if field in options:
                    raise ValueError("a field is named twice")
                options[field] = self._value(text.strip(), field in holds)
        except (SyntaxError, ValueError):
            raise RequestError(
                f'cannot read the {self.kind} spec "{spec}"; write it like "{self._example(name)}"'
            ) from None
        return options

    @staticmethod
    def _value(text: str, nests: bool) -> Any:
        if nests and text != "None":
            return ast.literal_eval(text) if text[:1] in "\"'" else text
        return ast.literal_eval(text)

    def _example(self, name: str | None = None) -> str:
        return next((describe_fields(n, self[n]) for n in ([name] if name else self)), "name(field=1)")


def _pieces(inside: str) -> list[str]:
    """Split at the commas that stand in no bracket and no quotation.

    Raises:
        ValueError: brackets or quotes that do not match, or nothing between two commas.
    """
    pieces, depth, quote, current = [], 0, "", ""
    for letter in inside:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth < 0:
                raise ValueError("a bracket too many")
        if letter == "," and not depth and not quote:
            pieces.append(current)
            current = ""
        else:
            current += letter
    if depth or quote:
        raise ValueError("an open bracket or quotation")
    if current.strip():
        pieces.append(current)
    if any(not piece.strip() for piece in pieces):
        raise ValueError("nothing between two commas")
    return pieces


def describe_fields(name: str, part: type[Any]) -> str:
    """`threshold(threshold=0.9)`: a name with its fields and defaults, compat switches left out."""
    fields = ", ".join(
        f"{field.name}={field.default!r}" if field.default is not dataclasses.MISSING else field.name
        for field in dataclasses.fields(part)
        if not field.name.startswith("compat")
    )
    return f"{name}({fields})" if fields else name


def one_line(part: type[Any]) -> str:
    """First sentence of a class's docstring."""
    return inspect.cleandoc(part.__doc__ or "").split("\n")[0]


def spec_of(registry: Registry[Any], part: object) -> str:
    """The spec that makes this object, with the fields that differ from their defaults."""
    name = next((name for name, entry in registry.items() if entry is type(part)), type(part).__name__)
    return call_of(name, part, registry)


def call_of(name: str, part: object, registry: Registry[Any] | None = None) -> str:
    """`name(field=value)`: a dataclass object with the fields that differ from their defaults.

    Args:
        registry: names the parts that the object holds.
    """
    if not dataclasses.is_dataclass(part):
        return name
    changed = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if getattr(part, f.name) != f.default}
    words = [f"{field}={_literal(value, registry)}" for field, value in changed.items()]
    return f"{name}({', '.join(words)})" if words else name


def _literal(value: Any, registry: Registry[Any] | None) -> str:
    """A value as a spec can hold it: the literal of infinity is a number too large for a float."""
    if registry is not None and type(value) in registry.values():
        return spec_of(registry, value)
    return repr(value).replace("inf", "1e999") if isinstance(value, float) else repr(value)


def _check_type(what: str, declared: Any, value: Any) -> None:
    """Refuse a text where a number is wanted and the like, before the class meets it."""
    wanted = declared.__name__ if isinstance(declared, type) else str(declared)
    if isinstance(value, bool):
        fits = "bool" in wanted
    elif isinstance(value, int):
        fits = "int" in wanted or "float" in wanted
    elif isinstance(value, float):
        fits = "float" in wanted
    elif value is None:
        fits = "None" in wanted
    elif isinstance(value, str):
        choices = re.findall(r"'([^']*)'", wanted)
        fits = value in choices if choices else "str" in wanted
    else:
        fits = type(value).__name__ in wanted
    if not fits:
        raise RequestError(f"{what} wants {wanted.replace('typing.', '')}: got {value!r}")
