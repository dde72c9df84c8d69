"""Decoding, caching and training for masked diffusion language models: one loop, small composable parts.

    import unmask

    model = unmask.load("builtin")
    puzzle = "Solve this 4x4 sudoku:\\n1000\\n0002\\n4003\\n0000"
    answers = unmask.generate(model, [puzzle], decoder="threshold(threshold=0.9)")
    print(answers[0].text, answers[0].nfe, answers[0].tpf)

Names are imported when they are first used: torch takes seconds, and `unmask --help` needs none of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.caches import CACHES as CACHES
    from unmask.core.schedules import SCHEDULES as SCHEDULES
    from unmask.decoders import DECODERS as DECODERS
    from unmask.errors import CheckpointError as CheckpointError
    from unmask.errors import CompositionError as CompositionError
    from unmask.errors import PluginError as PluginError
    from unmask.errors import RequestError as RequestError
    from unmask.errors import StalledDecoding as StalledDecoding
    from unmask.errors import UnknownNameError as UnknownNameError
    from unmask.errors import UnmaskError as UnmaskError
    from unmask.generation import Completion as Completion
    from unmask.generation import Model as Model
    from unmask.generation import denoise as denoise
    from unmask.generation import generate as generate
    from unmask.generation import infill as infill
    from unmask.loading import load as load

__version__ = "0.1.0"

_ERRORS = (
    "CheckpointError",
    "CompositionError",
    "PluginError",
    "RequestError",
    "StalledDecoding",
    "UnknownNameError",
    "UnmaskError",
)
_HOMES = {
    "CACHES": "unmask.caches",
    "SCHEDULES": "unmask.core.schedules",
    "DECODERS": "unmask.decoders",
    **dict.fromkeys(_ERRORS, "unmask.errors"),
    **dict.fromkeys(("Completion", "Model", "denoise", "generate", "infill"), "unmask.generation"),
    "load": "unmask.loading",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
