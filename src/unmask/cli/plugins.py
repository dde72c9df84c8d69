"""Plug-ins of strangers, seen from the command line: who brought them, and one clear line when one is broken."""

from importlib.metadata import entry_points
from typing import Any

from unmask.errors import RequestError
from unmask.registry import Registry


def plugged_in(registry: Registry[Any]) -> dict[str, str]:
    """Distribution of every plug-in of a registry, by the plug-in's name.

    Raises:
        RequestError: a plug-in that cannot be loaded, or is not what it is registered as.
    """
    found = {}
    for point in entry_points(group=registry.group):
        distribution = "unknown" if point.dist is None else point.dist.name
        found[point.name] = distribution
        try:
            point.load()
        except Exception as error:  # whatever a stranger's module raises when it is imported
            raise RequestError(
                f'plug-in {registry.kind} "{point.name}" of the package "{distribution}" cannot be loaded: '
                f"{type(error).__name__}: {error}. Repair or uninstall the package"
            ) from error
    try:
        len(registry)
    except TypeError as error:
        raise RequestError(f"{error}. Repair or uninstall the package that brings it") from error
    return found
