"""The loop. Every method, cache, schedule and model of the project runs through this one function.

Shape letters: b batch rows still running, l canvas slots, c candidate canvases of all rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core import rows as tree
from unmask.core.canvas import Canvas, ForwardPlan, plan
from unmask.core.prediction import Prediction
from unmask.core.sampling import Noise, Sampling, ban
from unmask.core.schedules import Schedule
from unmask.core.state import DenoisingState, Move
from unmask.core.stopping import Stopping
from unmask.core.window import Window
from unmask.errors import StalledDecoding

Memory = Any


@runtime_checkable
class Store(Protocol):
    """What the predictor remembers between forward passes (keys and values)."""

    def known(self, shown: Int[Tensor, "b l"]) -> Bool[Tensor, "b l"] | None:
        """Slots with keys and values stored for the token they show now; None when nothing is ever stored."""
        ...

    def computed(self, work: ForwardPlan) -> Int[Tensor, " b"]:
        """Hidden states that the forward pass just done has really computed, per row."""
        ...

    def note(self, canvas: Canvas, work: ForwardPlan) -> None:
        """Remember for which token each computed slot was computed."""
        ...


@runtime_checkable
class Facts(Protocol):
    """What the loop has to know about a model (all of it: `models.facts.ModelFacts`)."""

    @property
    def mask_id(self) -> int: ...
    @property
    def end_ids(self) -> tuple[int, ...]: ...
    @property
    def shift(self) -> int: ...


@runtime_checkable
class Cache(Protocol):
    """What the loop asks of a cache policy (see `caches.base.CachePolicy`)."""

    def begin(self, state: DenoisingState) -> Memory: ...
    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> Bool[Tensor, "b l"] | None: ...


@runtime_checkable
class MaskPredictor(Protocol):
    """A network that gives, for every asked slot, scores of its token."""

    @property
    def facts(self) -> Facts: ...

    @property
    def passes(self) -> int:
        """Rows really computed for each planned row (2 under classifier-free guidance)."""
        ...

    def open_store(self, state: DenoisingState, cache: Any) -> Any:
        """A fresh store for these rows."""
        ...

    def __call__(self, canvas: Canvas, work: ForwardPlan, cache: Any, store: Any) -> Float[Tensor, "b a v"]:
        """Logits about the token at each slot of `work.asked`; ruled-out tokens are at -inf. May be overwritten."""
        ...


@runtime_checkable
class Method(Protocol):
    """What the loop asks of a decoding method (see `decoders.base.Decoder`)."""

    @property
    def revokes(self) -> bool: ...
    @property
    def idles(self) -> bool: ...
    @property
    def branches(self) -> int: ...
    def fork(self, state: DenoisingState, memory: Memory) -> tuple[DenoisingState, Int[Tensor, " c"]]: ...
    def begin(self, state: DenoisingState) -> Memory: ...
    def view(self, state: DenoisingState, window: Window, memory: Memory) -> Canvas: ...
    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]: ...
    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory
    ) -> Move | tuple[Move, Memory]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass and what came of it, for the rows that were still running."""

    row_ids: Int[Tensor, " b"]  # which rows of the first state these are
    before: DenoisingState
    window: Window  # with branches: that of the canvas that won
    canvas: Canvas  # with branches: the one that won
    prediction: Prediction  # about this canvas
    move: Move
    filled: Bool[Tensor, "b l"]  # masked slots closed behind an end token, no work of the model
    after: DenoisingState
    rows_computed: Int[Tensor, " b"]  # hidden states computed, per row of the batch

    @property
    def confidence(self) -> Float[Tensor, "b l"]:
        """Probability of the candidate of every slot, or of what the move puts there instead, 0..1."""
        confidence = self.prediction.confidence[:, : self.before.num_slots]
        told = self.move.chances
        return confidence if told is None else torch.where(told > 0.0, told.to(confidence.dtype), confidence)


def denoise(
    predictor: MaskPredictor,
    state: DenoisingState,
    decoder: Method,
    *,
    schedule: Schedule,
    cache: Cache,
    sampling: Sampling | None = None,
    stop: Stopping | None = None,
) -> Iterator[Step]:
    """Decode all rows, yielding one Step per forward pass; the last Step of a row holds its final state.

    A row that is finished leaves the batch at once, so later steps cost nothing for it.

    Args:
        state: canvases to start from; any pattern of given and masked slots, of any lengths.
        decoder: what the model sees and which slots change.
        schedule: where a step may act.
        cache: which slots need not be recomputed; one whose token has changed since is recomputed in any case.

    Raises:
        StalledDecoding: a step that changed nothing although its window obliges it to commit.
    """
    sampling, stop = sampling or Sampling(), stop or Stopping()
    row_ids = torch.arange(state.num_rows, device=state.tokens.device)
    memory, schedule_memory, cache_memory = decoder.begin(state), schedule.begin(state), cache.begin(state)
    store = predictor.open_store(state, cache)
    while True:
        window = schedule.window(state, schedule_memory)
        live = window.unfinished(state)
        if not bool(live.all()):
            if not bool(live.any()):
                return
            running = (state, row_ids, memory, schedule_memory, cache_memory, store, window)
            running = tree.take(running, live.nonzero()[:, 0])
            state, row_ids, memory, schedule_memory, cache_memory, store, window = running
        scene, scene_memory, owner = (state, window), cache_memory, None
        if decoder.branches > 1:
            shown, owner = decoder.fork(state, memory)
            scene_memory, store = tree.take((cache_memory, store), owner)
            scene = shown, schedule.window(shown, tree.take(schedule_memory, owner))
        canvas = decoder.view(*scene, memory)
        frozen = _frozen(cache.frozen(*scene, scene_memory), store, canvas)
        work = plan(canvas, scene[1], decoder.asks(*scene, canvas), frozen, predictor.facts.shift)
        with torch.inference_mode():
            logits = ban(predictor(canvas, work, cache, store), sampling.forbid)
        store.note(canvas, work)
        computed = store.computed(work) * predictor.passes
        noise = Noise(scene[0].seed, scene[0].step)
        prediction = Prediction(logits, work, canvas.tokens.shape[1], sampling, noise, targets=canvas.targets)
        if stop.hold_end:
            prediction = prediction.hold(stop.held(*scene, prediction, predictor.facts.end_ids))
        decision = decoder.decide(*scene, prediction, memory)
        move, memory = decision if isinstance(decision, tuple) else (decision, memory)
        if owner is not None:
            assert move.branch is not None, "a decoder with branches says which one won"
            won = torch.searchsorted(owner, torch.arange(state.num_rows, device=owner.device)) + move.branch
            window, canvas, prediction, store = tree.take((scene[1], canvas, prediction, store), won)
            computed = computed.new_zeros(state.num_rows).index_add(0, owner, computed)
        if not decoder.idles and bool((window.must.any(-1) & ~move.changes).any()):
            raise StalledDecoding(f"{decoder} changed nothing at a step that has to commit at least one slot")
        before, after = state, state.apply(move)
        filled = stop.tail(after, window, predictor.facts.end_ids, decoder.revokes)
        state = after.fill(filled, torch.full_like(after.step, predictor.facts.end_ids[0])) if filled.any() else after
        yield Step(row_ids, before, window, canvas, prediction, move, filled, state, computed)


def _frozen(wanted: Bool[Tensor, "b l"] | None, store: Store, canvas: Canvas) -> Bool[Tensor, "b s"] | None:
    """Frozen slots in canvas space: those whose stored values belong to the token they show, and never extra ones."""
    known = store.known(canvas.tokens[:, : canvas.num_answer_slots])
    if wanted is None or known is None:
        return None
    return functional.pad(wanted & known, (0, canvas.extra))
