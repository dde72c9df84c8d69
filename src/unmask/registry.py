"""Names and specs: `"threshold(threshold=0.9)"` becomes an object, and everybody reads the same list.

A stranger's package joins through an entry point of the group named in `Registry.group`.
"""

import ast
import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from unmask.errors import PluginError, RequestError, UnknownNameError

Part = TypeVar("Part")

_SPEC = re.compile(r"\s*([A-Za-z][\w.+-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)


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
        options = self._options(spec, name, inside or "")
        known = {field.name for field in dataclasses.fields(part)}  # type: ignore[arg-type]
        for option in options:
            if option not in known:
                close = difflib.get_close_matches(option, known, n=1)
                hint = f' Did you mean "{close[0]}"?' if close else ""
                allowed = ", ".join(sorted(known)) or "none"
                raise RequestError(f'{self.kind} "{name}" has no field "{option}"; fields: {allowed}.{hint}')
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            if field.name in options:
                _check_type(f'{self.kind} "{name}": field "{field.name}"', field.type, options[field.name])
                if field.type is float:
                    options[field.name] = float(options[field.name])
        try:
            return part(**options)
        except (TypeError, ValueError) as error:
            raise RequestError(f'{self.kind} "{spec}": {error}') from None

    def _options(self, spec: str, name: str, inside: str) -> dict[str, Any]:
        try:
            call = ast.parse(f"f({inside})", mode="eval").body
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                raise ValueError("more than one call")
            if len({word.arg for word in call.keywords}) < len(call.keywords):
                raise ValueError("a field is named twice")
            if call.args or any(word.arg is None for word in call.keywords):
                raise RequestError(f'{self.kind} spec "{spec}": name every field, like "{self._example(name)}"')
            return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        except (SyntaxError, ValueError):
            raise RequestError(
                f'cannot read the {self.kind} spec "{spec}"; write it like "{self._example(name)}"'
            ) from None

    def _example(self, name: str | None = None) -> str:
        return next((describe_fields(n, self[n]) for n in ([name] if name else self)), "name(field=1)")


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
    return call_of(next((name for name, entry in registry.items() if entry is type(part)), type(part).__name__), part)


def call_of(name: str, part: object) -> str:
    """`name(field=value)`: a dataclass object with the fields that differ from their defaults."""
    if not dataclasses.is_dataclass(part):
        return name
    changed = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if getattr(part, f.name) != f.default}
    words = [f"{field}={_literal(value)}" for field, value in changed.items()]
    return f"{name}({', '.join(words)})" if words else name


def _literal(value: Any) -> str:
    """A value as a spec can hold it: the literal of infinity is a number too large for a float."""
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
