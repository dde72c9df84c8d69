"""The comparison of trained variants: what a recipe buys, beside the base model, its twin and each other.

`unmask bench --suite builtin-training` lets them all answer the same held-out problems, and measures in the same run
what a step over a block of slots costs against a step over one: without that ratio, tokens per forward pass say nothing
about the twin that reads from left to right.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from statistics import median

from unmask.bench.contestants import Contestant
from unmask.bench.report import Report, three_digits
from unmask.core.state import DenoisingState
from unmask.generation import Model, Recipe, run

SUITE_NAME = "builtin-training"
TASKS = ("functions",)
PROBLEMS = 500  # of each task
D2F, DPARALLEL, WINO_PLUS, TWIN = (f"builtin:{name}" for name in ("d2f", "dparallel", "wino-plus", "ar"))
CONTESTANTS = (
    Contestant("WINO", "wino(draft=0.6, verify=0.9)"),
    Contestant("WINO+ 0.9", "threshold(threshold=0.9)", model=WINO_PLUS),
    Contestant("WINO+ 0.7", "threshold(threshold=0.7)", model=WINO_PLUS),
    Contestant(
        "D2F",
        "threshold(threshold=0.9, strict=True)",
        "pipelined(block_length=32, add=0.1, force=0.95)",
        "finished-blocks",
        model=D2F,
    ),
    Contestant("dParallel", "entropy-threshold(threshold=0.5)", model=DPARALLEL),
    Contestant(
        "LEAP + dParallel",
        "leap(early=0.7, candidate=0.2, inner=entropy-threshold(threshold=0.5))",
        "sequential(block_length=32)",
        model=DPARALLEL,
    ),
    Contestant("DC-Leap + dParallel", "dc-leap(commit=0.75, draft=0.98)", "sliding(length=None)", model=DPARALLEL),
    Contestant("autoregressive", "every-slot", "next-token", "finished-blocks", model=TWIN),
)
SLOTS = (1, 32, 64)  # whose steps are measured
CACHED = 160  # slots with stored keys and values before them: a prompt and some of its answer
STEPS = 12  # of each round
ROUNDS = 7


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step over so many slots costs, all else being equal."""

    slots: int  # hidden states computed
    cached: int  # slots whose keys and values are taken from the cache
    seconds: float  # median
    over_one: float  # divided by that of one slot


def step_costs(
    twin: Model,
    blocks: Model,
    *,
    slots: Sequence[int] = SLOTS,
    cached: int = CACHED,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[StepCost]:
    """Time steps of the whole loop, the widths in turns.

    One slot is the next token of the causal twin; more are a block of the block-causal model behind a cached prompt, of
    which every step decides the surest slot. Both are batches of one.

    Args:
        twin: a causal model.
        blocks: a block-causal one of the same size.
        slots: widths, 1 first.
        cached: slots before them.
        rounds: how often each width is measured.
        clock: tells seconds.
    """
    times: dict[int, list[float]] = {width: [] for width in slots}
    for turn in range(rounds + 1):
        for width in slots:
            found = list(_steps(twin if width == 1 else blocks, width, cached, clock))
            if turn:  # the first round warms up
                times[width] += found
    medians = {width: median(found) for width, found in times.items()}
    return [StepCost(width, cached, found, found / medians[slots[0]]) for width, found in medians.items()]


def _steps(model: Model, width: int, cached: int, clock: Callable[[], float]) -> Iterator[float]:
    """Seconds of each step but the first, which computes the prompt."""
    if width == 1:
        recipe = Recipe.of(facts=model.facts, stop="none")
    else:
        schedule = f"pipelined(block_length={width}, add=1.0, force=1.0)"
        recipe = Recipe.of("low-confidence", schedule, "finished-blocks", stop="none", facts=model.facts)
    special = (model.facts.mask_id, *model.facts.end_ids)
    words = [token for token in range(model.facts.vocab_size) if token not in special]
    prompt = [words[place % len(words)] for place in range(cached)]
    facts = {"mask_id": model.facts.mask_id, "end_ids": model.facts.end_ids, "shift": model.facts.shift}
    state = DenoisingState.start([prompt], max(width, STEPS + 1), device=model.device, **facts)  # type: ignore[arg-type]
    steps = run(model, state, recipe)
    next(steps)
    begun = clock()
    for step in islice(steps, STEPS):
        assert step.rows_computed.tolist() == [width], "the step computes the slots it is measured for"
        now = clock()
        yield now - begun
        begun = now


def with_step_costs(whole: Report, costs: Sequence[StepCost]) -> Report:
    """The report with these figures among its facts and notes."""
    one = costs[0]
    wide = " and ".join(f"{cost.slots} slots {three_digits(cost.over_one)} times" for cost in costs[1:])
    note = (
        f"One step, {one.cached} slots cached: over one slot {1000 * one.seconds:.2f} ms, over {wide} as much; median "
        f"of {ROUNDS * STEPS} steps each, in turns, batch size 1."
    )
    facts = whole.facts | {"step_costs": [asdict(cost) for cost in costs]}
    return replace(whole, notes=[*whole.notes, note], facts=facts)
