"""From an answer to code that can run: fences, prose around code, bodies without their head."""

import ast
import builtins
import re
import sys
import textwrap

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_OPENING = re.compile(r"^(?:def |class |import |from \S+ import |async def |@|[A-Za-z_]\w* = )", re.MULTILINE)


def parses(code: str) -> bool:
    """Whether it is Python."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def defined(code: str) -> set[str]:
    """Names that code defines at its top level, imports aside; none if it is no Python."""
    if not parses(code):
        return set()
    names = set()
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def called(checks: str, reference: str = "") -> set[str]:
    """Names in checks that stand for something of the program.

    Args:
        checks: Python.
        reference: a right program: what it defines counts even if it has the name of a built-in.
    """
    nodes = list(ast.walk(ast.parse(checks)))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = {*dir(builtins), *sys.stdlib_module_names} - defined(reference)
    return used - made - defined(checks) - known


def blocks(text: str) -> list[str]:
    """The insides of all Markdown fences; one that is never closed reaches to the end."""
    return [textwrap.dedent(match[2]) for match in _FENCE.finditer(text)]


def without_prose(text: str) -> str:
    """The code in a text without fences: from its first definition or import to the last line that still parses."""
    opening = None if parses(text) else _OPENING.search(text)
    lines = text[opening.start() if opening else 0 :].splitlines()
    kept = len(lines)
    while kept and not parses("\n".join(lines[:kept])):
        kept -= 1
    if not kept:
        return text
    # a line such as "Done" is Python, too
    body = ast.parse("\n".join(lines[:kept])).body
    while len(body) > 1 and isinstance(body[-1], ast.Expr) and isinstance(body[-1].value, ast.Name | ast.Tuple):
        kept = body.pop().lineno - 1
    return "\n".join(lines[:kept]) + "\n"


def program_of(text: str, names: set[str]) -> str:
    """The program in an answer.

    Args:
        text: what a model wrote.
        names: what the program should define; the first fence that defines one of them is taken.

    Returns:
        Code; the text as it is if there is none to be found.
    """
    fenced = blocks(text)
    for block in fenced:
        if names & defined(block):
            return block
    for block in fenced:  # cut off at the end of the answer, or with prose inside
        if names & defined(without_prose(block)):
            return without_prose(block)
    if fenced and parses("\n".join(fenced)):
        return "\n".join(fenced)
    return without_prose(text)


def completed(head: str, text: str) -> str | None:
    """A head that ends inside a function, with the body that the text gives.

    The body ends before the first line without indentation. If the text has lost the indentation of its first line, or
    of all lines, it gets it back. None if nothing fits.
    """
    text = text.strip("\n").rstrip()
    first, _, rest = text.partition("\n")
    best: list[str] = []
    for body in (text, f"    {first.lstrip()}\n{rest}", textwrap.indent(textwrap.dedent(text), "    ")):
        lines = body.splitlines()
        end = next((at for at, line in enumerate(lines) if line.strip() and not line[0].isspace()), len(lines))
        while end and not parses(head + "\n".join(lines[:end])):
            end -= 1
        code = [line for line in lines[:end] if line.strip()]
        if len(code) > len([line for line in best if line.strip()]):
            best = lines[:end]
    if all(line.lstrip().startswith("#") for line in best if line.strip()):
        return None
    return head + "\n".join(best) + "\n"
