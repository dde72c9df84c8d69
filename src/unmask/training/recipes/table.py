"""The recipes by name, each with what its paper trains and how its learning rate falls."""

from collections.abc import Mapping

from unmask.training.job import Lora, RecipeEntry
from unmask.training.recipes.ar import NO_TAIL, ar
from unmask.training.recipes.d2f import CONSTANT, D2FOptions, d2f
from unmask.training.recipes.dparallel import DParallelOptions, dparallel
from unmask.training.recipes.sft import SFTOptions, sft
from unmask.training.recipes.wino_plus import WinoPlusOptions, wino_plus

ATTENTION = ("query", "key", "value", "attention_out")

RECIPES: Mapping[str, RecipeEntry] = {
    entry.name: entry
    for entry in (
        RecipeEntry("sft", sft, SFTOptions, "Supervised training with LLaDA's masked cross-entropy."),
        RecipeEntry(
            "ar", ar, SFTOptions, "Next-token training: the autoregressive twin to measure against.",
            tail=NO_TAIL, masks=False,
        ),
        RecipeEntry(
            "d2f", d2f, D2FOptions, "Discrete diffusion forcing: a model becomes block-causal, for pipelined blocks.",
            schedule=CONSTANT, lora=Lora(32, 32.0, 0.1, ATTENTION), teacher=True,
        ),
        RecipeEntry(
            "dparallel", dparallel, DParallelOptions,
            "Certainty-forcing distillation on the model's own answers (--data, from unmask rollout --answers).",
            schedule=CONSTANT, lora=Lora(128, 128.0),
        ),
        # The published list of layers hits q, k, v and up of LLaDA only; here it is all that was meant.
        RecipeEntry(
            "wino-plus", wino_plus, WinoPlusOptions, "Trajectory injection: learn the order in which WINO decided.",
            schedule=CONSTANT, lora=Lora(128, 128.0), replays=True,
        ),
    )
}  # fmt: skip
