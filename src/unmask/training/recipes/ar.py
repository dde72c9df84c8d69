"""Next-token training: the autoregressive twin that diffusion models are measured against.

Same backbone, data and optimizers as `sft`; attention is causal, the text is clean, and the loss is the mean
cross-entropy of the answer's tokens and the end token behind them. Decode the result as any causal model, see
`core.schedules.NextToken`.

Source: the common training of language models; nothing of it is new. Deviates: prompts carry no loss, as in `sft`.
"""

from dataclasses import asdict, replace

from unmask.models.backbone import Backbone
from unmask.training.corruption import NextToken
from unmask.training.data import Tail
from unmask.training.loop import BatchSource, RunSettings, TrainingRun
from unmask.training.objectives import MaskedCrossEntropy
from unmask.training.recipes.sft import SFTOptions, optimizers_of

# A causal model stops at the first end token and never looks behind it; give this to the batches.
NO_TAIL = Tail(weight=0.0, short=0, middle_share=0.0, long_share=0.0)


def ar(
    model: Backbone, batches: BatchSource, settings: RunSettings, *, options: SFTOptions | None = None
) -> TrainingRun:
    """A run of next-token training.

    The model's config then says that it is causal, and so do the run's facts and everything saved from them; a row
    speaks for the slot behind it, whatever the family.

    Args:
        model: trained in place, as far as its parameters require a gradient; from nothing or from any weights.
        batches: clean micro-batches, without tails (`NO_TAIL`) unless end tokens behind the first are to be learned.
        settings: of the run.
        options: rates, None = those of `sft`; what is said of masking means nothing here.
    """
    model.config = replace(model.config, attention="causal")
    return TrainingRun(
        model=model,
        batches=batches,
        corruption=NextToken(),
        objective=MaskedCrossEntropy(per="target", shift=1),
        optimizers=optimizers_of(model, options or SFTOptions()),
        settings=replace(settings, facts={**settings.facts, "config": asdict(model.config), "shift": 1}),
    )
