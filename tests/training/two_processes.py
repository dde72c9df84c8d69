"""Run by test_loop: the tiny run of the tests on two processes; argument: folder for losses and weights."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from training.helpers import losses_of, tiny_run


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    run = tiny_run()
    losses = losses_of(run)
    Path(folder, f"losses-{rank}.json").write_text(json.dumps(losses))
    torch.save(run.model.state_dict(), Path(folder, f"weights-{rank}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    # Forking is safe here, because no thread has been started yet, and spares two imports of torch.
    torch.multiprocessing.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
