"""Run by test_loop and test_sharing: the tiny run of the tests on two processes.

Arguments: a folder for losses and weights; "whole" or "parts" for how the processes share the model.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from training.helpers import losses_of, tiny_model, tiny_run
from unmask.training.sharing import share_out, whole


def work(rank: int, folder: str, how: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = tiny_model()
    if how == "parts":
        share_out(model)
        run = tiny_run(Path(folder, "run"), model=model, checkpoint_minutes=0.0)
        losses = losses_of(run, stop=5)
        dist.barrier()  # the first process writes the checkpoint that both resume from
        model = tiny_model()
        share_out(model)
        losses += losses_of(tiny_run(Path(folder, "run"), model=model), resume=True)
    else:
        losses = losses_of(tiny_run(model=model))
    Path(folder, f"losses-{rank}.json").write_text(json.dumps(losses))
    weights = {name: whole(value) for name, value in model.named_parameters()}
    torch.save(weights, Path(folder, f"weights-{rank}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    # Forking is safe here, because no thread has been started yet, and spares two imports of torch.
    torch.multiprocessing.start_processes(work, (sys.argv[1], sys.argv[2]), nprocs=2, start_method="fork")
