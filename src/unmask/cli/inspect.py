"""`unmask inspect`: what a checkpoint is and what it costs, without running it."""

import json
from typing import Annotated, Any

import typer

from unmask.cli.output import console_for, print_hanging
from unmask.errors import RequestError

LARGEST = 10_000_000
NAME_WIDTH = 17  # characters


def inspect(
    model: Annotated[str, typer.Argument(help='"builtin", a folder, or a hub name "organisation/name".')] = "builtin",
    adapter: Annotated[
        str | None, typer.Option(help="LoRA adapter on top of it, a folder or a hub name.", show_default=False)
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Estimate memory for canvases of so many slots.", show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option(help="Estimate memory for so many rows at once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Say what a checkpoint is: family, sizes, attention, tokens, memory."""
    for name, value in (("length", length), ("batch", batch)):
        if value is not None and not 1 <= value <= LARGEST:
            raise RequestError(f"{name} must be from 1 to {LARGEST}: got {value}")

    from unmask.models.checkpoints import find_folder, open_folder
    from unmask.models.checkpoints.reading import DTYPES
    from unmask.models.inspection import estimate_memory, inspect_checkpoint

    facts = inspect_checkpoint(model, adapter)
    if length is not None or batch != 1:
        config = open_folder(find_folder(model, weights=False)).config
        dtype = next(known for known in DTYPES.values() if str(known) == f"torch.{facts['dtype']}")
        slots = length or facts["memory"]["length"]
        size = estimate_memory(config, slots, batch, dtype, cache=True)
        facts["memory"] = {"length": slots, "batch": batch, "bytes": size}
    if as_json:
        print(json.dumps(facts))
        return
    _print(facts)


def _print(facts: dict[str, Any]) -> None:
    from rich.text import Text

    console = console_for("stdout")
    for name, value in rows_of(facts):
        print_hanging(console, Text.assemble((f"{name:<{NAME_WIDTH}}", "cyan"), value), hang=NAME_WIDTH)


def rows_of(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Facts as lines for a person."""
    sizes, memory, stored = facts["sizes"], facts["memory"], facts["stored"]
    attention = facts["attention"]
    if facts["block_length"] is not None:
        attention += f", blocks of {facts['block_length']}"
    rows = [
        ("model", facts["source"]),
        ("folder", facts["folder"]),
        ("family", facts["family"]),
        ("parameters", f"{facts['parameters']:,} ({facts['dtype']})"),
        (
            "sizes",
            f"{sizes['layers']} layers, width {sizes['width']}, {sizes['heads']} heads of {sizes['head_size']}"
            f" ({sizes['key_heads']} for keys), feed-forward {sizes['feed_width']}",
        ),
        ("vocabulary", f"{sizes['vocabulary']:,} ({'tied' if sizes['tied_head'] else 'untied'} head)"),
        ("attention", attention),
        ("context", f"{facts['max_length']:,} tokens"),
        ("shift", f"{facts['shift']} ({'the left neighbour' if facts['shift'] else 'a row'} speaks for a slot)"),
        ("mask token", _token(facts["mask"])),
        ("end tokens", ", ".join(map(_token, facts["ends"])) or "none"),
        ("never predicted", ", ".join(map(_token, facts["banned"])) or "none"),
        ("begin token", "none" if facts["begin"] is None else _token(facts["begin"])),
        ("chat template", "yes" if facts["chat_template"] else "no"),
    ]
    if stored is not None:
        kinds = ", ".join(f"{count:,} {name}" for name, count in stored["parameters_by_dtype"].items())
        files = "1 file" if stored["files"] == 1 else f"{stored['files']} files"
        rows.append(("weights", f"{_bytes(stored['bytes'])} in {files} ({kinds})"))
    if facts["adapter"] is not None:
        rows.append(("adapter", _adapter(facts["adapter"])))
    sizes_of = memory["bytes"]
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in sizes_of.items() if name != "total")
    canvases = "1 row" if memory["batch"] == 1 else f"{memory['batch']} rows"
    rows.append(("memory", f"{_bytes(sizes_of['total'])} for {canvases} of {memory['length']:,} slots ({parts})"))
    return rows


def _adapter(adapter: dict[str, Any]) -> str:
    targets = adapter["targets"] if isinstance(adapter["targets"], str) else ", ".join(adapter["targets"])
    nothing = f"; {', '.join(adapter['unmatched'])} match nothing here" if adapter["unmatched"] else ""
    made = f", made for {adapter['base']}" if adapter["base"] else ""
    return (
        f"{adapter['source']}: LoRA of rank {adapter['rank']}, alpha {adapter['alpha']:g}, {adapter['parameters']:,} "
        f"parameters on {adapter['layers']} layers ({targets}{nothing}){made}"
    )


def _token(token: dict[str, Any]) -> str:
    return f"{token['token']} ({token['id']})"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
