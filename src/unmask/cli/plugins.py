"""Plug-ins of strangers, seen from the command line: who brought them."""

from importlib.metadata import entry_points
from typing import Any

from unmask.registry import Registry


def plugged_in(registry: Registry[Any]) -> dict[str, str]:
    """Distribution of every plug-in of a registry, by the plug-in's name.

    Raises:
        PluginError: a plug-in that cannot be loaded, or is not what it is registered as.
    """
    len(registry)  # loads them all
    points = entry_points(group=registry.group)
    return {point.name: "unknown" if point.dist is None else point.dist.name for point in points}
