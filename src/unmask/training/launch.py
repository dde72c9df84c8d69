"""From a job to a run that is carried out: model, data, run, and the exported result."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from unmask.evaluation.problems import file_problems, suite_problems
from unmask.evaluation.tasks.suite import training_problems
from unmask.models.adapters import Adapter, LoraConfig, adapt, attach, published_targets
from unmask.models.backbone import Backbone
from unmask.models.checkpoints import FAMILIES, LoadedModel, choose_device, load_checkpoint
from unmask.models.config import BackboneConfig
from unmask.models.facts import ModelFacts
from unmask.models.text import Text
from unmask.training.checkpoints import TrainingError, latest_checkpoint, read_checkpoint
from unmask.training.data import BucketedBatches, ChatEncoder, ExampleSource, FileExamples, GeneratedExamples
from unmask.training.export import MODEL_FILES, adapter_facts, adapter_of, checkpoint_facts, export, export_merged
from unmask.training.job import Job, Lora
from unmask.training.loop import train
from unmask.training.processes import join, launched, local_processes, start
from unmask.training.recipes.sft import fresh_model, small_config
from unmask.training.replay import TrajectorySamples
from unmask.training.rollouts import read_answers
from unmask.training.run import BatchSource, Evaluation, Progress
from unmask.training.sharing import place, share_out
from unmask.training.tokenizer import END_TOKEN, MASK_TOKEN, save_tokenizer, train_tokenizer
from unmask.training.validation import Validation

TOKENIZER_PROBLEMS = 20_000  # problems from which the tokenizer of a new model is trained

# Shows the records of a run; gets whether this process is the one to show them, and a title.
Display = Callable[[bool, str], AbstractContextManager[Callable[[Progress], None]]]


def launch(job: Job, display: Display) -> Path | None:
    """Run in this process, or as one of torchrun's, or start the processes; then export.

    Returns:
        The exported model or adapter; None in all processes but the first.

    Raises:
        UnmaskError: bad input, before anything is written where that is possible; or a run that could not go on.
    """
    count = launched()
    job.check(count or job.machine.processes)
    if count is not None:
        device = join(job.machine.device)
        try:
            if place()[0] == 0:
                prepare_folder(job)
            dist.barrier()
            work(device, job, display)
            first = place()[0] == 0
        finally:
            dist.destroy_process_group()
        if not first:
            return None
    else:
        prepare_folder(job)
        if job.machine.processes == 1:
            work(choose_device(job.machine.device), job, display)
        else:
            start(work, job.machine.processes, job.machine.device, (job, display))
    newest = latest_checkpoint(job.length.out)
    assert newest is not None, "a finished run leaves a checkpoint"
    export(newest, job.length.out / "model")
    if job.adapting.merge:
        export_merged(newest, job.length.out / "merged")
    return job.length.out / "model"


def prepare_folder(job: Job) -> None:
    """Put tokenizer files in place: those of the checkpoint to fine-tune, or a newly trained tokenizer."""
    out = job.length.out
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / "tokenizer_config.json").exists():
            return
        if job.start.init is not None:
            folder = load_checkpoint(job.start.init, device="cpu").folder
            for name in MODEL_FILES:
                if (folder / name).exists():
                    shutil.copyfile(folder / name, out / name)
        else:
            save_tokenizer(train_tokenizer(_texts(job)), out)
    except OSError as error:
        raise TrainingError(f"{out} cannot be written: {error.strerror or error}") from None


def _texts(job: Job) -> Iterator[str]:
    for task in job.mix:
        problems = training_problems({task: 1.0}, job.length.seed, exclude=job.exclude)
        for problem in islice(problems, TOKENIZER_PROBLEMS // len(job.mix)):
            yield f"{problem.prompt}\n{problem.answer}"


def work(device: torch.device, job: Job, display: Display) -> None:
    """What one process does: build its run, carry it out."""
    cores = os.cpu_count() or 1
    torch.set_num_threads(job.machine.threads or max(cores // max(job.machine.processes, local_processes()), 1))
    first = place()[0] == 0
    if not first:
        logging.getLogger("unmask").setLevel(logging.ERROR)  # the first process has said it
    text = Text.load(job.length.out)
    started = build_model(job, text, device)
    model, facts = started.backbone, started.facts | {"recipe": job.recipe.name}
    model.recompute = job.steps.gradient_checkpointing
    if job.machine.shard:
        share_out(model)
    recipe, batches = job.recipe, build_batches(job, text, facts, model.config.max_length)
    known = {"mask_id": facts["mask_id"], "shift": facts["shift"]} if recipe.masks else {}
    settings = job.settings(facts, evaluation=build_evaluation(job, text, facts) if first else None)
    run = recipe.make(model, batches, settings, options=job.options, **known)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    title = f"{trained / 1e6:.2f} M parameters"
    if "lora" in facts:
        title += f" of an adapter, on {facts['base']}"
    with display(first, title) as show:
        for record in train(run, resume=job.length.resume):
            show(record)


@dataclass(frozen=True, slots=True)
class Started:
    """The model to train and what its checkpoints must say."""

    backbone: Backbone
    facts: dict[str, Any]


def build_model(job: Job, text: Text, device: torch.device) -> Started:
    """A new model, a checkpoint, a checkpoint with an adapter, or what a run's own checkpoint says."""
    newest = latest_checkpoint(job.length.out)
    if newest is not None:
        return _resumed(job, read_checkpoint(newest)["facts"], device)
    if job.start.init is None:
        started = _new(job, text)
        return Started(started.backbone.to(device), started.facts)
    adapted = job.adapting.adapter is not None or job.lora is not None
    loaded = _load(job.start.init, device, adapter=job.adapting.adapter, half=adapted)
    facts = _facts_of(loaded) | {"base": _base(job.start.init)}
    adapter = None
    if loaded.adapter is not None:
        adapter = loaded.adapter.adapter
    elif job.lora is not None:
        adapter = _new_adapter(job, job.lora, loaded)
    if adapter is not None:
        return Started(loaded.backbone, facts | adapter_facts(adapter))
    return Started(loaded.backbone.requires_grad_(True), facts)


def _load(name: str, device: torch.device, *, adapter: str | None = None, half: bool) -> LoadedModel:
    """A checkpoint; weights that are trained themselves are kept in float32."""
    dtype = "auto" if half else "float32"
    return load_checkpoint(name, device=device, dtype=dtype, adapter=adapter, merge=False)


def _resumed(job: Job, facts: dict[str, Any], device: torch.device) -> Started:
    facts = {"pad_id": facts["end_id"], "shift": 0, "family": "llada"} | facts
    base = facts.get("base")
    if facts.get("recipe", job.recipe.name) != job.recipe.name:
        raise TrainingError(f"{job.length.out} was trained with {facts['recipe']}, not with {job.recipe.name}")
    if job.start.init is not None and base is not None and _base(job.start.init) != base:
        raise TrainingError(f"{job.length.out} was trained from {base}, not from {job.start.init}")
    if base is None or ("lora" not in facts and not job.recipe.teacher):
        return Started(Backbone(BackboneConfig(**facts["config"])).to(device), facts)
    backbone = _load(base, device, half="lora" in facts).backbone
    if "lora" in facts:
        adapt(backbone, adapter_of(facts))
    else:
        backbone.requires_grad_(True)
    return Started(backbone, facts)


def _new(job: Job, text: Text) -> Started:
    mask_id, end_id = text.id_of(MASK_TOKEN), text.id_of(END_TOKEN)
    if mask_id is None or end_id is None:
        raise TrainingError(f"the tokenizer in {job.length.out} lacks {MASK_TOKEN} or {END_TOKEN}")
    sizes = job.sizes
    config = small_config(
        text.vocab_size,
        width=sizes.width,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        feed_width=sizes.feed_width,
    )
    facts = checkpoint_facts(config, mask_id=mask_id, end_id=end_id, pad_id=end_id, shift=0, family="llada")
    return Started(fresh_model(config, job.length.seed), facts)


def _facts_of(loaded: LoadedModel) -> dict[str, Any]:
    known = loaded.facts
    # Of several end tokens the first is end of text, which pads, and the last end of turn.
    return checkpoint_facts(
        loaded.backbone.config,
        mask_id=known.mask_id,
        end_id=known.end_ids[-1],
        pad_id=known.end_ids[0],
        shift=known.shift,
        family=known.family,
    )


def _base(name: str) -> str:
    """The name of a checkpoint that also holds from another folder."""
    return str(Path(name).expanduser().resolve()) if Path(name).expanduser().is_dir() else name


def _new_adapter(job: Job, lora: Lora, loaded: LoadedModel) -> Adapter:
    names = FAMILIES[loaded.facts.family].tensor_names(loaded.backbone.config)
    said = job.adapting.lora_targets
    targets: tuple[str, ...] | str
    if said is None:
        targets = published_targets(names, lora.linears) if lora.linears else published_targets(names)
    else:
        targets = said if said == "all-linear" else tuple(name.strip() for name in said.split(","))
    try:
        assert job.start.init is not None, "an adapter has a model below it"
        config = LoraConfig(lora.rank, lora.alpha, targets, dropout=lora.dropout, base=_base(job.start.init))
        return attach(loaded.backbone, config, names, seed=job.length.seed)
    except ValueError as error:
        raise TrainingError(str(error)) from None


def build_batches(job: Job, text: Text, facts: dict[str, Any], context: int) -> BatchSource:
    """The data of a job in micro-batches."""
    seed, tokens = job.length.seed, job.steps.batch_tokens
    if job.recipe.replays:
        assert job.decoded.rollouts is not None, "checked before"
        answers = read_answers(job.decoded.rollouts, job.decoded.keep_step_ratio)
        return TrajectorySamples(answers, batch_tokens=tokens, seed=seed)
    longest = min(job.texts.max_length or context, context)
    encoder = ChatEncoder(text, facts["end_id"])
    source: ExampleSource
    if job.texts.data is None:
        source = GeneratedExamples(job.mix, encoder, seed, job.exclude)
    else:
        source = FileExamples(job.texts.data, encoder, seed, longest, truncate=job.texts.truncate)
    return BucketedBatches(
        source, batch_tokens=tokens, pad_id=facts["pad_id"], seed=seed, max_length=longest, tail=job.recipe.tail
    )


def build_evaluation(job: Job, text: Text, facts: dict[str, Any]) -> Evaluation | None:
    """What is looked at while training, if anything is."""
    looks = job.looks
    if not job.evaluates:
        return None
    tasks = [name.strip() for name in looks.eval_tasks.split(",")] if looks.eval_tasks else []
    if looks.eval_data is not None:
        problems = file_problems(looks.eval_data, tasks, looks.eval_problems)
    else:
        problems = suite_problems("builtin", tasks, looks.eval_problems)
    config = BackboneConfig(**facts["config"])
    known = ModelFacts(
        mask_id=facts["mask_id"],
        end_ids=tuple(dict.fromkeys((facts["pad_id"], facts["end_id"]))),
        banned_ids=(facts["mask_id"],),
        vocab_size=config.vocab_size,
        shift=facts["shift"] if job.recipe.masks else 1,
        attention=config.attention if job.recipe.masks else "causal",
        block_length=config.block_length,
        family=facts["family"],
        max_length=config.max_length,
    )
    measure = Validation(problems, text, known, looks.eval_decoder, looks.eval_length)
    return Evaluation(measure, looks.eval_steps, looks.eval_minutes)
