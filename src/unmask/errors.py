"""Every error a person can cause: what was wrong, what was got, what is allowed."""

import difflib
from collections.abc import Iterable


class UnmaskError(Exception):
    """Parent of all errors that unmask raises on purpose."""


class CompositionError(UnmaskError):
    """Two parts (decoder, schedule, cache, model) that make no sense together."""


class CheckpointError(UnmaskError):
    """A checkpoint that cannot be read, or whose tensors do not fit."""


class StalledDecoding(UnmaskError):
    """A step that changed nothing although masked slots remain."""


class RequestError(UnmaskError):
    """A request that cannot be served: empty prompt, impossible length, bad option."""


class PluginError(UnmaskError):
    """An installed plug-in that cannot be loaded, or is not what it is registered as."""


class UnknownNameError(UnmaskError):
    """A name that is not in a registry."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f' Did you mean "{close[0]}"?' if close else ""
        super().__init__(f'no {kind} named "{name}"; known: {", ".join(names)}.{hint}')
