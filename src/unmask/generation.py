"""From prompts to completions: the twelve steps of docs/structure.md in one function.

Shape letters: b rows, l canvas slots.
"""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from unmask.caches import CACHES, CachePolicy
from unmask.caches.fast_dllm import NoCache
from unmask.core.compose import check_composition
from unmask.core.denoise import MaskPredictor, Step
from unmask.core.denoise import denoise as denoise_with
from unmask.core.drift import Drift
from unmask.core.metrics import Counts, useful
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Blocks, NextToken, Schedule, Sequential
from unmask.core.state import DenoisingState
from unmask.core.stopping import FinishReason, Stopping
from unmask.core.trajectory import Recorder, Trajectory
from unmask.decoders import DECODERS, Decoder
from unmask.errors import RequestError
from unmask.models.facts import ModelFacts
from unmask.models.guidance import Guided
from unmask.models.text import Text
from unmask.presets import Setting
from unmask.presets import preset as preset_of
from unmask.registry import call_of, spec_of

Message = dict[str, str]
Prompt = str | Sequence[Message] | Sequence[int | None]
Record = bool | Literal["views"]  # keep trajectories, and what the model was shown

DEFAULT_DECODER = "threshold(threshold=0.9)"
CAUSAL_DECODER, CAUSAL_CACHE = "every-slot", "finished-blocks"  # defaults for causal models, on `next-token`
DEFAULT_LENGTH = 128  # answer slots


@dataclass(frozen=True)
class Model:
    """A mask predictor and the text side of its checkpoint: what `load` returns and `generate` takes."""

    predictor: MaskPredictor
    facts: ModelFacts
    text: Text
    source: str  # name or path it was loaded from
    device: torch.device
    adapter: str | None = None  # name or path of the adapter on top

    @property
    def origin(self) -> dict[str, str]:
        """Where the weights come from, for the facts of a record."""
        return {"model": self.source} | ({} if self.adapter is None else {"adapter": self.adapter})

    def in_blocks(self, schedule: Blocks) -> "Model":
        """The same model, seeing blocks as the schedule cuts them if it is block-causal (D2F trains with blocks of 16
        and decodes with 32 or 64); a bidirectional model stays as it is."""
        facts = replace(self.facts, block_length=schedule.block_length, block_alignment=schedule.align)
        if self.facts.attention != "block_causal" or facts == self.facts:
            return self
        return replace(self, predictor=self.predictor.with_facts(facts), facts=facts)  # type: ignore[attr-defined]

    def guided(self, scale: float) -> "Model":
        """The same model under classifier-free guidance; scale 0 changes nothing.

        Raises:
            RequestError: guidance of a causal model, or a scale below 0.
        """
        if scale and self.facts.attention == "causal":
            raise RequestError("guidance puts masks in place of the prompt, and a causal model has never seen any")
        return replace(self, predictor=Guided(self.predictor, scale)) if scale else self


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parts of a run, resolved: what `generate`, the command line and the benchmark agree on."""

    decoder: Decoder
    schedule: Schedule
    cache: CachePolicy
    sampling: Sampling
    stop: Stopping

    @classmethod
    def of(
        cls,
        decoder: str | Decoder | None = None,
        schedule: str | Schedule | None = None,
        cache: str | CachePolicy | None = None,
        *,
        sampling: Sampling | None = None,
        stop: str | Stopping = "tail",
        facts: ModelFacts | None = None,
    ) -> "Recipe":
        """Turn specs into parts and check that they go together.

        Args:
            decoder, schedule, cache: specs or parts; None = what suits the model. That is threshold 0.9, the schedule
                the method needs, else blocks (of the model's own length and alignment if it is block-causal, of 32
                slots from the prompt's end otherwise), and no cache. A causal model gets the next token, every slot of
                it, and an exact cache.
            facts: the model's; None = a bidirectional one.

        Raises:
            UnknownNameError, RequestError: a spec that cannot be read.
            CompositionError: parts that make no sense together.
        """
        attention = "bidirectional" if facts is None else facts.attention
        method = DECODERS.make(decoder or (CAUSAL_DECODER if attention == "causal" else DEFAULT_DECODER))
        if schedule is None:
            schedule = method.schedule() if method.schedule else _schedule_for(facts)
        plan = SCHEDULES.make(schedule)
        policy = CACHES.make(cache or (CAUSAL_CACHE if attention == "causal" else "none"))
        check_composition(method, plan, policy, attention)
        rule = Stopping(stop) if isinstance(stop, str) else stop  # type: ignore[arg-type]
        return cls(method, plan, policy, sampling or Sampling(), rule)

    def specs(self) -> dict[str, str]:
        """The parts as text, for records."""
        return {
            "decoder": spec_of(DECODERS, self.decoder),
            "schedule": spec_of(SCHEDULES, self.schedule),
            "cache": spec_of(CACHES, self.cache),
            "sampling": call_of("sampling", self.sampling),
            "stop": call_of("stop", self.stop),
        }


def _schedule_for(facts: ModelFacts | None) -> Schedule:
    """What a model is decoded on when neither the request nor the method says so."""
    if facts is None or facts.attention == "bidirectional":
        return Sequential()
    if facts.attention == "causal":
        return NextToken()
    return Sequential(facts.block_length, align=facts.block_alignment)


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer and what it cost."""

    text: str  # the answer; of a canvas with given text behind its first hole, the whole canvas
    tokens: list[int]  # answer tokens before the end token; when infilling, of all holes
    nfe: int  # forward passes
    tpf: float  # answer tokens up to and including the end token, per forward pass
    rows_computed: int  # hidden states computed
    finish_reason: FinishReason  # "stop": end token; "length": slots used up; "unfinished": masks left (compat)
    seconds: float  # wall time until this row was finished, its batch mates included
    canvas: list[int]  # the whole canvas with the answer filled in (infilling reads this)
    trajectory: Trajectory | None
    drift: float | None = None  # share of commits whose token the cache has changed, 0..1; None = not measured


def encode(model: Model, prompt: Prompt) -> list[int | None]:
    """Token ids of a prompt: a text or chat goes through the chat template, ids are taken as they are.

    A text is one user message if the checkpoint has a chat template, and plain text if it has none. Literals of special
    tokens in user text stay plain text. None in a list of ids is a slot to fill.

    Raises:
        RequestError: an empty prompt, an id outside the vocabulary, or a prompt of no known form.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise RequestError("the prompt is empty; write what the model should answer")
        chat = [{"role": "user", "content": prompt}]
        return list(model.text.encode_chat(chat) if model.text.has_template else model.text.encode(prompt))
    if isinstance(prompt, torch.Tensor):
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or not len(prompt):
        raise RequestError("the prompt is empty; give a text, a list of messages or a list of token ids")
    if isinstance(prompt[0], dict):
        return list(model.text.encode_chat(_messages(prompt)))
    for token in prompt:
        if token is not None and (not isinstance(token, int) or not 0 <= token < model.facts.vocab_size):
            raise RequestError(f"token ids must be 0..{model.facts.vocab_size - 1} or None (to fill): got {token!r}")
    return list(prompt)  # type: ignore[arg-type]


def _messages(prompt: Sequence[Any]) -> list[Message]:
    for number, message in enumerate(prompt):
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            raise RequestError(f'message {number} needs the keys "role" and "content": got {message!r}')
    return list(prompt)


def start_state(
    model: Model,
    prompts: Sequence[Prompt],
    length: int | Sequence[int] = DEFAULT_LENGTH,
    seed: int | Sequence[int] = 0,
) -> DenoisingState:
    """First state of a batch. Prompts of ids that hold None are canvases to fill in, and take no `length`.

    Raises:
        RequestError: see `encode`; also a prompt that leaves no room in the trained context.
    """
    if isinstance(prompts, str) or not len(prompts) or isinstance(prompts[0], dict):
        raise RequestError("prompts must be a list of prompts, at least one; put a single text or chat into a list")
    lengths = [length] * len(prompts) if isinstance(length, int) else list(length)
    if len(lengths) != len(prompts):
        raise RequestError(f"need one length per prompt: got {len(lengths)} lengths for {len(prompts)} prompts")
    canvases = []
    for number, (prompt, room) in enumerate(zip(prompts, lengths, strict=True)):
        ids = encode(model, prompt)
        if None not in ids:
            if not isinstance(room, int) or room < 1:
                raise RequestError(f"length must be a number of tokens from 1 up: got length={room}")
            if len(ids) >= model.facts.max_length:
                raise RequestError(
                    f"prompt {number} has {len(ids)} tokens, but the model was trained on contexts of "
                    f"{model.facts.max_length}; shorten it to leave room for an answer"
                )
            ids = ids + [None] * room
        if len(ids) > model.facts.max_length:
            warnings.warn(
                f"prompt {number} and its answer take {len(ids)} tokens, more than the trained context of "
                f"{model.facts.max_length}; expect worse answers, or use a smaller length",
                stacklevel=3,
            )
        canvases.append(ids)
    return DenoisingState.from_canvas(
        canvases,
        mask_id=model.facts.mask_id,
        end_ids=model.facts.end_ids,
        shift=model.facts.shift,
        seeds=seed,
        device=model.device,
    )


def denoise(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    decoder: str | Decoder | None = None,
    schedule: str | Schedule | None = None,
    cache: str | CachePolicy | None = None,
    preset: str | None = None,
    length: int | Sequence[int] | None = None,
    temperature: float = 0.0,
    seed: int | Sequence[int] = 0,
    guidance: float = 0.0,
    stop: str | Stopping = "tail",
    sampling: Sampling | None = None,
) -> Iterator[Step]:
    """Decode step by step: yields one `Step` per forward pass. Options as in `generate`."""
    decoder, schedule, cache, length = resolve(preset, decoder, schedule, cache, length)
    recipe = _recipe(model, decoder, schedule, cache, temperature, stop, sampling)
    return run(model.guided(guidance), start_state(model, prompts, length, seed), recipe)


def run(model: Model, state: DenoisingState, recipe: Recipe) -> Iterator[Step]:
    """The loop over an already laid out state."""
    parts = {"schedule": recipe.schedule, "cache": recipe.cache, "sampling": recipe.sampling, "stop": recipe.stop}
    return denoise_with(_predictor(model, recipe), state, recipe.decoder, **parts)  # type: ignore[arg-type]


def _predictor(model: Model, recipe: Recipe) -> MaskPredictor:
    return (model.in_blocks(recipe.schedule) if isinstance(recipe.schedule, Blocks) else model).predictor


def resolve(
    preset: str | None,
    decoder: str | Decoder | None,
    schedule: str | Schedule | None,
    cache: str | CachePolicy | None,
    length: int | Sequence[int] | None,
) -> tuple[str | Decoder | None, str | Schedule | None, str | CachePolicy | None, int | Sequence[int]]:
    """What was asked for, then what the preset says; parts that neither names stay None, see `Recipe.of`.

    Raises:
        UnknownNameError: no such preset or setting.
    """
    named = Setting() if preset is None else preset_of(preset)
    return (
        decoder if decoder is not None else named.decoder,
        schedule if schedule is not None else named.schedule,
        cache if cache is not None else named.cache,
        length if length is not None else named.length or DEFAULT_LENGTH,
    )


def _recipe(
    model: Model,
    decoder: str | Decoder | None,
    schedule: str | Schedule | None,
    cache: str | CachePolicy | None,
    temperature: float,
    stop: str | Stopping,
    sampling: Sampling | None,
) -> Recipe:
    if sampling is not None and temperature:
        raise RequestError("give the temperature inside sampling, or as temperature, not both")
    sampling = sampling or Sampling(temperature=temperature)
    return Recipe.of(decoder, schedule, cache, sampling=sampling, stop=stop, facts=model.facts)


def generate(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    decoder: str | Decoder | None = None,
    schedule: str | Schedule | None = None,
    cache: str | CachePolicy | None = None,
    preset: str | None = None,
    length: int | Sequence[int] | None = None,
    temperature: float = 0.0,
    seed: int | Sequence[int] = 0,
    guidance: float = 0.0,
    stop: str | Stopping = "tail",
    sampling: Sampling | None = None,
    batch_size: int | None = None,
    record: Record = True,
    drift: bool = False,
) -> list[Completion]:
    """Answer prompts.

    Args:
        model: what `unmask.load` returned.
        prompts: texts, chats (lists of messages) or lists of token ids, mixed as you like; None among ids is a slot to
            fill in.
        decoder: a spec such as "threshold(threshold=0.9)" or a Decoder; see `unmask list`. None = the preset's, else
            threshold 0.9 (a causal model: the next token).
        schedule: a spec or a Schedule; None = the preset's, else the one the method needs, else blocks (of 32 slots, or
            as a block-causal model has them; the next token of a causal one).
        cache: a spec or a CachePolicy; None = the preset's, else none (the exact one of a causal model).
        preset: a method under its paper's name, with a published setting behind a colon if you like, such as "d2f" or
            "wino:llada/gsm8k"; fills in what the arguments above and `length` leave open.
        length: answer slots, one number or one per prompt, tokens; None = the preset's, else 128.
        temperature: 0 = greedy.
        seed: row i draws from stream seed + i; or one seed per prompt.
        guidance: classifier-free guidance scale, 0 = off.
        stop: "tail" (stop at a settled end token), "block", or "none" (decide every slot).
        sampling: more options of the draw (top-k, top-p, forbidden tokens).
        batch_size: prompts decoded together; None = all. Answers do not depend on it.
        record: keep trajectories (costs little); "views" = also what the model was shown at each step, for `unmask
            show` (some bytes per slot and step).
        drift: also measure how many commits the cache has changed (a second forward pass per step, which no other
            figure counts).

    Returns:
        One Completion per prompt, in order.

    Raises:
        RequestError, UnknownNameError, CompositionError: bad input, before anything is computed.
    """
    decoder, schedule, cache, length = resolve(preset, decoder, schedule, cache, length)
    recipe = _recipe(model, decoder, schedule, cache, temperature, stop, sampling)
    model = model.guided(guidance)
    return complete(model, start_state(model, prompts, length, seed), recipe, batch_size, record, drift)


def infill(model: Model, texts: Sequence[Sequence[str | int]], **options: Any) -> list[Completion]:
    """Fill in holes anywhere in a text.

    Args:
        texts: each a list of pieces, a text to keep or the number of tokens to fill in there, as in
            `["def double(x):\\n    return ", 6, "\\n"]`. No chat template is applied.
        options: those of `generate`, but `length`.

    Returns:
        One Completion per text; `text` is the whole text with the holes filled, `tokens` what was filled in.

    Raises:
        RequestError: no hole, a hole of less than one token, or a piece that is neither text nor number.
    """
    canvases: list[list[int | None]] = []
    for number, pieces in enumerate(texts):
        canvas: list[int | None] = []
        for piece in [pieces] if isinstance(pieces, str) else pieces:
            if isinstance(piece, str):
                canvas += model.text.encode(piece)
            elif isinstance(piece, int) and not isinstance(piece, bool) and piece >= 1:
                canvas += [None] * piece
            else:
                raise RequestError(f"text {number}: a piece is a text or a number of tokens from 1 up: got {piece!r}")
        if None not in canvas:
            raise RequestError(f"text {number} has no hole; put a number of tokens between its pieces")
        canvases.append(canvas)
    filled = generate(model, canvases, **options)
    return [replace(one, text=model.text.decode(one.canvas)) for one in filled]


def complete(
    model: Model,
    state: DenoisingState,
    recipe: Recipe,
    batch_size: int | None = None,
    record: Record = True,
    drift: bool = False,
) -> list[Completion]:
    """Run a laid out state to its end, in batches, and read the answers off."""
    if batch_size is not None and batch_size < 1:
        raise RequestError(f"batch_size must be at least 1, or None for all at once: got {batch_size}")
    if record not in (True, False, "views"):
        raise RequestError(f'record must be True, False or "views": got {record!r}')
    size = batch_size or state.num_rows
    done: list[Completion] = []
    for first in range(0, state.num_rows, size):
        rows = torch.arange(first, min(first + size, state.num_rows), device=state.tokens.device)
        done += _complete_batch(model, _trimmed(state.take(rows)), recipe, record, drift)
    return done


def _trimmed(state: DenoisingState) -> DenoisingState:
    """Without the padding that only other batches needed."""
    width = int((state.exists * (state.slots + 1)).max())
    sliced = {name: getattr(state, name)[:, :width] for name in ("tokens", "masked", "given", "exists", "committed_at")}
    return replace(state, **sliced)


def _complete_batch(model: Model, state: DenoisingState, recipe: Recipe, keep: Record, drift: bool) -> list[Completion]:
    facts = {**model.origin, **recipe.specs()} if keep else None
    measured = drift_of(model, recipe) if drift else None
    tally = Tally(model, state, facts, views=keep == "views", drift=measured)
    for step, seconds in timed(run(model, state, recipe)):
        tally.add(step, seconds)
    return tally.completions()


def drift_of(model: Model, recipe: Recipe) -> Drift:
    """What measures the drift of such a run, from its steps."""
    return Drift(_predictor(model, recipe), NoCache())


def timed(steps: Iterator[Step]) -> Iterator[tuple[Step, float]]:
    """Every step with the seconds that decoding has taken so far. What is done with a step does not count."""
    seconds = 0.0
    while True:
        begun = time.perf_counter()
        step = next(steps, None)
        seconds += time.perf_counter() - begun
        if step is None:
            return
        yield step, seconds


class Tally:
    """Makes completions of steps, while somebody else drives the loop.

    Args:
        model: whose steps they are.
        state: the first state.
        facts: what the trajectories say about themselves; None = keep no trajectory.
        views: also keep what the model was shown, for pictures.
        drift: measures what the cache has changed; None = not asked for.
    """

    def __init__(
        self,
        model: Model,
        state: DenoisingState,
        facts: dict[str, str] | None = None,
        *,
        views: bool = False,
        drift: Drift | None = None,
    ) -> None:
        count = state.num_rows
        self._model, self._facts, self._drift = model, facts, drift
        self._recorder = None if facts is None else Recorder(state, views=views)
        self._last = [(state, row) for row in range(count)]
        self._nfe, self._rows, self._seconds = [0] * count, [0] * count, [0.0] * count

    def add(self, step: Step, seconds: float) -> None:
        """Count a step that was done `seconds` after the beginning."""
        if self._recorder:
            self._recorder.add(step)
        if self._drift:
            self._drift.add(step)
        for place, (row, computed) in enumerate(zip(step.row_ids.tolist(), step.rows_computed.tolist(), strict=True)):
            self._nfe[row] += 1
            self._rows[row] += computed
            self._seconds[row] = seconds
            self._last[row] = step.after, place

    def completions(self) -> list[Completion]:
        """One per row, as far as it has come."""
        trajectory = self._recorder.trajectory(self._facts) if self._recorder else None
        return [self._completion(row, trajectory and trajectory.of_row(row)) for row in range(len(self._last))]

    def _completion(self, row: int, trajectory: Trajectory | None) -> Completion:
        batch, place = self._last[row]
        state = batch.take(torch.tensor([place], device=batch.step.device))
        canvas = state.tokens[0][state.exists[0]].tolist()
        answer = state.tokens[0][(state.answer & ~state.masked)[0]].tolist()
        infilled = bool(state.infills.any())
        tokens, ended = (answer, False) if infilled else useful(answer, self._model.facts.end_ids)
        counts = Counts(len(tokens), ended, self._nfe[row], self._rows[row])
        unfinished = bool(state.masked.any())
        return Completion(
            text=self._model.text.decode(canvas if infilled else tokens),
            tokens=tokens,
            nfe=counts.nfe,
            tpf=counts.tpf,
            rows_computed=counts.rows_computed,
            finish_reason="unfinished" if unfinished else "stop" if ended else "length",
            seconds=self._seconds[row],
            canvas=canvas,
            trajectory=trajectory,
            drift=None if self._drift is None else self._drift.share(row),
        )
