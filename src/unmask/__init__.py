"""Decoding, caching and training for masked diffusion language models: one loop, small composable parts.

import unmask

model = unmask.load("builtin")
puzzle = "Solve this 4x4 sudoku:\\n1000\\n0002\\n4003\\n0000"
answers = unmask.generate(model, [puzzle], decoder="threshold(threshold=0.9)")
print(answers[0].text, answers[0].nfe, answers[0].tpf)
"""

from unmask.caches import CACHES
from unmask.core.schedules import SCHEDULES
from unmask.decoders import DECODERS
from unmask.errors import (
    CheckpointError,
    CompositionError,
    PluginError,
    RequestError,
    StalledDecoding,
    UnknownNameError,
    UnmaskError,
)
from unmask.generate import Completion, Model, denoise, generate, infill
from unmask.loading import load

__version__ = "0.1.0"

__all__ = [
    "CACHES",
    "DECODERS",
    "SCHEDULES",
    "CheckpointError",
    "Completion",
    "CompositionError",
    "Model",
    "PluginError",
    "RequestError",
    "StalledDecoding",
    "UnknownNameError",
    "UnmaskError",
    "denoise",
    "generate",
    "infill",
    "load",
]
