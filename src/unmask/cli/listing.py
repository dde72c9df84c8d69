"""`unmask list`: the parts that can be named, read from the code."""

import ast
import dataclasses
import inspect
import json
import textwrap
import tokenize
from enum import StrEnum
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.output import console_for, print_hanging

if TYPE_CHECKING:
    from rich.console import Console


class Kind(StrEnum):
    """What can be listed."""

    DECODERS = "decoders"
    CACHES = "caches"
    SCHEDULES = "schedules"
    PRESETS = "presets"
    TASKS = "tasks"
    MODELS = "models"


def list_parts(
    kind: Annotated[Kind | None, typer.Argument(help="One kind only.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List decoders, caches, schedules, presets, tasks and models, plug-ins included."""
    kinds = list(Kind) if kind is None else [kind]
    special = {Kind.MODELS: list_models, Kind.PRESETS: list_presets}
    found = {str(one): special[one]() if one in special else _registered(one) for one in kinds}
    if as_json:
        print(json.dumps(found))
        return
    console = console_for("stdout")
    for number, (title, entries) in enumerate(found.items()):
        if number:
            console.print()
        console.print(title, style="bold")
        for entry in entries:
            _print_entry(console, entry)
    if kind is None:
        console.print()
        console.print('Use them as specs: --decoder "threshold(threshold=0.8)" --cache dual', style="dim")


def _registered(kind: Kind) -> list[dict[str, Any]]:
    """What is known of every entry of a registry, ready for JSON."""
    from unmask.caches import CACHES
    from unmask.cli.plugins import plugged_in
    from unmask.core.schedules import SCHEDULES
    from unmask.decoders import DECODERS
    from unmask.evaluation.tasks import PUBLISHED
    from unmask.registry import Registry, describe_fields, one_line

    registries: dict[Kind, Registry[Any]] = {
        Kind.DECODERS: DECODERS,
        Kind.CACHES: CACHES,
        Kind.SCHEDULES: SCHEDULES,
        Kind.TASKS: PUBLISHED,
    }
    registry = registries[kind]
    strangers = plugged_in(registry)
    return [
        {
            "name": name,
            "spec": describe_fields(name, part),
            "summary": one_line(part),
            "fields": describe_fields_of(part),
            "plugin": strangers.get(name),
            **_nature(kind, part),
        }
        for name, part in registry.items()
    ]


def _nature(kind: Kind, part: type[Any]) -> dict[str, Any]:
    """What else a person choosing a part wants to know."""
    if kind is Kind.CACHES:
        return {"exact": part.exact}
    if kind is Kind.DECODERS:
        # a method made of methods answers such questions only once it holds some
        revokes = part.revokes if isinstance(part.revokes, bool) else None
        return {"revokes": revokes, "schedule": part.schedule.__name__ if isinstance(part.schedule, type) else None}
    return {}


def describe_fields_of(part: type[Any]) -> list[dict[str, Any]]:
    """Name, type, default and comment of every field of a dataclass."""
    comments = field_comments(part)
    return [
        {
            "name": field.name,
            "type": _type_name(field.type),
            "required": field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            "default": _plain(field.default),
            "doc": comments.get(field.name, ""),
        }
        for field in dataclasses.fields(part)
    ]


def _type_name(declared: Any) -> str:
    name = declared.__name__ if isinstance(declared, type) else str(declared)
    return name.replace("typing.", "")


def _plain(value: Any) -> Any:
    """A default as JSON knows it; anything else as its Python spelling."""
    if value is dataclasses.MISSING:
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def field_comments(part: type[Any]) -> dict[str, str]:
    """The comment beside each field of a dataclass and its parents; empty where there is no source to read."""
    found: dict[str, str] = {}
    for level in reversed(part.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(level))
        except (OSError, TypeError):
            continue
        by_line = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef), "the source of a class is a class statement"
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                found[node.target.id] = " ".join(by_line[line] for line in lines if line in by_line)
    return found


def list_models() -> list[dict[str, Any]]:
    """Models that come with the package, and families of checkpoints that can be loaded."""
    from importlib.metadata import entry_points

    from unmask.models.checkpoints import ENTRY_POINTS, FAMILIES, adapter_on, included_models

    entries = []
    for name, folder in included_models().items():
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        kind = "weights" if adapter_on(name, None) is None else "an adapter on builtin"
        entries.append(_model(name, f"comes with the package, {size / 1e6:.1f} MB of {kind}", None))
    for name in FAMILIES:
        entries.append(_model(name, f'a folder or hub name whose config.json says model_type "{name}"', None))
    for point in entry_points(group=ENTRY_POINTS):
        distribution = "unknown" if point.dist is None else point.dist.name
        entries.append(_model(point.name, "a family of checkpoints from a plug-in", distribution))
    return entries


def list_presets() -> list[dict[str, Any]]:
    """Methods under their papers' names, with the settings published for each task."""
    from unmask.presets import PRESETS, Setting

    def spoken(setting: Setting) -> str:
        parts = [part for part in (setting.decoder, setting.schedule, setting.cache) if part]
        return " @ ".join(parts) + (f", length {setting.length}" if setting.length else "")

    return [
        {
            "name": name,
            "spec": name,
            "summary": f"{preset.summary} ({preset.source})",
            "parts": spoken(preset.parts),
            "settings": {task: spoken(preset.setting(name, task)) for task in preset.settings},
            "fields": [],
            "plugin": None,
        }
        for name, preset in PRESETS.items()
    ]


def _model(name: str, summary: str, plugin: str | None) -> dict[str, Any]:
    return {"name": name, "spec": name, "summary": summary, "fields": [], "plugin": plugin}


def _print_entry(console: "Console", entry: dict[str, Any]) -> None:
    from rich.text import Text

    marks = []
    if "exact" in entry:
        marks.append("exact" if entry["exact"] else "approximate")
    if entry.get("revokes"):
        marks.append("may take tokens back")
    if entry.get("schedule"):
        marks.append(f"on {entry['schedule']}")
    if entry["plugin"]:
        marks.append(f"plug-in of {entry['plugin']}")
    head = Text(entry["spec"], style="cyan")
    if marks:
        head.append(f"  [{', '.join(marks)}]", "yellow")
    print_hanging(console, head, 2)
    print_hanging(console, Text(entry["summary"]), 6)
    for task, parts in ({"": entry["parts"]} | entry["settings"] if "parts" in entry else {}).items():
        print_hanging(console, Text.assemble((f"{task}: " if task else "", "green"), parts), 8, 2)
    for field in entry["fields"]:
        default = "" if field["required"] else f" = {field['default']!r}"
        line = Text.assemble((field["name"], "green"), (f": {field['type']}{default}", "dim"))
        if field["doc"]:
            line.append(f"  {field['doc']}")
        print_hanging(console, line, 8, 2)
