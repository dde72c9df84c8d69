"""`unmask generate`: answer one prompt."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.output import Attention, check_device, check_seed, check_writable, console_for
from unmask.errors import RequestError

if TYPE_CHECKING:
    from unmask.core.trajectory import Trajectory
    from unmask.generation import Completion

LONGEST = 100_000  # answer slots; more is a typing error


class Stop(StrEnum):
    """When an answer counts as finished."""

    TAIL = "tail"
    BLOCK = "block"
    NONE = "none"


def generate(
    prompt: Annotated[str, typer.Argument(help='What to answer; "-" reads it from stdin.', show_default=False)],
    model: Annotated[str, typer.Option(help='"builtin", a folder, or a hub name "organisation/name".')] = "builtin",
    adapter: Annotated[
        str | None, typer.Option(help="LoRA adapter on top of it, a folder or a hub name.", show_default=False)
    ] = None,
    attention: Annotated[
        Attention | None,
        typer.Option(help="Read the checkpoint as a block-causal one (D2F adapters) or not.", show_default=False),
    ] = None,
    decoder: Annotated[
        str | None, typer.Option(help="Decoding method; see `unmask list`.", show_default="threshold(threshold=0.9)")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Which slots are open; by default what the method needs.", show_default=False)
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Which slots need not be recomputed.", show_default="none")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help='Parts and length under a paper\'s name, "d2f" or "wino:llada/gsm8k"; see `unmask list presets`.',
            show_default=False,
        ),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Answer slots, in tokens.", show_default="128")] = None,
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw among so many best tokens; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw among the best tokens of this total probability; 1 = all.")] = 1.0,
    guidance: Annotated[float, typer.Option(help="Classifier-free guidance scale; 0 = off.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    stop: Annotated[
        Stop, typer.Option(help="Stop at a settled end token (tail), when its block is full (block), or never (none).")
    ] = Stop.TAIL,
    hold_end: Annotated[
        bool, typer.Option("--hold-end", help="Commit no end token while a slot left of it is masked.")
    ] = False,
    device: Annotated[str, typer.Option(help='"auto", "cpu", "cuda", "cuda:1", "mps".')] = "auto",
    dtype: Annotated[str, typer.Option(help='"auto", "float32", "bfloat16", "float16".')] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the answer as it is denoised.")] = False,
    drift: Annotated[
        bool, typer.Option("--drift", help="Measure how many tokens the cache has changed; takes twice as long.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Save the trajectory to this file, for `unmask show`.", show_default=False)
    ] = None,
) -> None:
    """Answer one prompt, and say what it cost."""
    question = _read(prompt)
    if length is not None and not 1 <= length <= LONGEST:
        raise RequestError(f"length must be a number of tokens from 1 to {LONGEST}: got {length}")
    check_seed(seed)
    if trace is not None:
        check_writable(trace)

    from unmask.caches import CACHES
    from unmask.cli.plugins import plugged_in
    from unmask.cli.watch import decode
    from unmask.core.sampling import Sampling
    from unmask.core.schedules import SCHEDULES
    from unmask.core.stopping import Stopping
    from unmask.decoders import DECODERS
    from unmask.generation import Recipe, resolve, start_state
    from unmask.loading import load
    from unmask.show.terminal import Screen
    from unmask.show.words import with_words

    check_device(device)
    for registry in (DECODERS, SCHEDULES, CACHES):
        plugged_in(registry)
    # every part is made before the model is loaded: a large one takes minutes
    named = resolve(preset, decoder, schedule, cache, length)
    method = None if named[0] is None else DECODERS.make(named[0])
    plan = None if named[1] is None else SCHEDULES.make(named[1])
    policy = None if named[2] is None else CACHES.make(named[2])
    slots = named[3]
    assert isinstance(slots, int), "one prompt has one length"
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    stopping = Stopping(stop.value, hold_end)
    pattern = None if attention is None else attention.pattern
    loaded = load(model, device=device, dtype=dtype, attention=pattern, adapter=adapter).guided(guidance)
    recipe = Recipe.of(method, plan, policy, sampling=sampling, stop=stopping, facts=loaded.facts)
    state = start_state(loaded, [question], slots, seed)
    facts = {"seed": str(seed), "guidance": str(guidance)}
    terminal = console_for("stderr")
    if watch:
        with Screen(terminal, f"{recipe.specs()['decoder']} on {model}") as screen:
            answer = decode(loaded, state, recipe, facts, screen, views=trace is not None, drift=drift)
    else:
        answer = decode(loaded, state, recipe, facts, views=trace is not None, drift=drift)
    assert answer.trajectory is not None, "decode always keeps the trajectory"
    try:
        if trace is not None:
            _save(with_words(answer.trajectory, loaded.text), trace)
    finally:  # the answer is there, whatever became of the file
        if as_json:
            parts = {kind: recipe.specs()[kind] for kind in ("decoder", "schedule", "cache")}
            settings = {"stop": stop, "temperature": temperature, "guidance": guidance, "seed": seed, "length": slots}
            print(json.dumps(_result(answer) | loaded.origin | parts | settings))
        elif not (watch and terminal.is_terminal and sys.stdout.isatty()):  # else the screen shows it already
            print(answer.text)
        sys.stdout.flush()
        if not as_json:
            terminal.print(f"{cost(answer)}, finish: {answer.finish_reason}", style="dim", soft_wrap=True)


def _read(prompt: str) -> str:
    """The prompt, from stdin if it is "-".

    Raises:
        RequestError: nothing in it, or bytes that are no UTF-8.
    """
    if prompt == "-":
        try:
            prompt = sys.stdin.read().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise RequestError(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if not prompt.strip():
        raise RequestError("the prompt is empty; write what the model should answer")
    return prompt


def _save(trajectory: "Trajectory", path: Path) -> None:
    from safetensors import SafetensorError

    try:
        trajectory.save(path)
    except SafetensorError as error:
        raise RequestError(f'cannot write the trajectory to "{path}": {error}') from None


def _result(answer: "Completion") -> dict[str, object]:
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "num_tokens": len(answer.tokens),
        "nfe": answer.nfe,
        "tpf": answer.tpf,
        "rows_computed": answer.rows_computed,
        "seconds": answer.seconds,
        "finish_reason": answer.finish_reason,
        "drift": answer.drift,
    }


def cost(answer: "Completion") -> str:
    """What an answer cost, in one line."""
    rate = len(answer.tokens) / answer.seconds if answer.seconds else 0.0
    drift = "" if answer.drift is None else f", drift {100 * answer.drift:.1f} %"
    return (
        f"{len(answer.tokens)} tokens, NFE {answer.nfe}, TPF {answer.tpf:.2f}, {answer.rows_computed:,} rows, "
        f"{rate:,.0f} tokens/s{drift}"
    )
