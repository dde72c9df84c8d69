"""Who may import whom. The table is that of docs/structure.md; a new arrow in it is a decision, not a convenience."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unmask

PACKAGE = Path(unmask.__file__).parent
GROUND = {"errors", "registry"}  # know nothing of the package; everybody may use them
DECODING = GROUND | {"core", "decoders", "caches", "models", "presets", "generation", "loading"}
ALLOWED = {
    "errors": set(),
    "registry": {"errors"},
    "presets": {"errors"},
    "core": GROUND,
    "decoders": GROUND | {"core"},
    "caches": GROUND | {"core", "models.backbone"},  # Block and Rotary, the types that run_block speaks about
    "models": GROUND | {"core", "caches.base"},
    "generation": DECODING - {"generation", "loading"},
    "loading": DECODING - {"loading"},
    "training": DECODING | {"evaluation"},
    "evaluation": DECODING,
    "serving": DECODING,
    "bench": DECODING | {"evaluation"},
    "show": DECODING,
}
FREE = {"cli", "__init__", "__main__"}  # the front doors see the whole house
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports, at the top or inside a function."""
    for node in ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} is a relative import; write the whole name"
            yield node.lineno, str(node.module)


def layer(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_point_inwards(file: Path) -> None:
    mine = layer(file)
    for line, name in imports(file):
        inside = name.removeprefix("unmask").lstrip(".")
        if name.split(".")[0] != "unmask" or mine in FREE:
            continue
        assert inside, f"{file}:{line} imports the whole package; import the module that holds the name"
        fits = any(f"{inside}.".startswith(f"{allowed}.") for allowed in ALLOWED[mine] | {mine})
        assert fits, f"{file}:{line} imports unmask.{inside}; {mine} may import {', '.join(sorted(ALLOWED[mine]))}"


@pytest.mark.parametrize("file", [file for file in FILES if layer(file) in ("core", "errors", "registry")], ids=str)
def test_the_core_stands_on_torch_alone(file: Path) -> None:
    roots = {name.split(".")[0] for _, name in imports(file)}
    assert not roots & {"transformers", "tokenizers", "huggingface_hub", "typer", "rich", "pydantic"}


@pytest.mark.parametrize("file", [file for file in FILES if layer(file) == "caches"], ids=str)
def test_caches_take_nothing_but_types_from_the_backbone(file: Path) -> None:
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("unmask.models"):
            assert {alias.name for alias in node.names} <= {"Block", "Rotary"}


def test_every_folder_has_its_line_in_the_table() -> None:
    assert {layer(file) for file in FILES} - FREE <= set(ALLOWED)
