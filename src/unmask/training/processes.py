"""The processes of a training: found under torchrun or `accelerate launch`, or started here."""

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from unmask.errors import UnmaskError
from unmask.models.checkpoints import choose_device
from unmask.training.checkpoints import TrainingError

# glibc gives large blocks back to the system at once and fetches them again in the next step; keeping them makes CPU
# training 11 % faster. Read when a process starts, so only spawned workers profit.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "200000000",
}


def launched() -> int | None:
    """How many processes torchrun, `accelerate launch` or the like has started; None if nobody has."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return None


def local_processes() -> int:
    """How many of the launched processes are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", launched() or 1))


def device_of(name: str, number: int) -> torch.device:
    """The device of a process.

    Args:
        name: as for `load_checkpoint`.
        number: of the process on its machine.

    Raises:
        TrainingError: more processes than GPUs.
    """
    device = choose_device(name)
    if device.type != "cuda" or device.index is not None:
        return device
    if number >= torch.cuda.device_count():
        raise TrainingError(f"process {number + 1} of this machine has no GPU: there are {torch.cuda.device_count()}")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def join(name: str, **how: Any) -> torch.device:
    """Enter the group of launched processes, or of those started by `start`; returns this process's device."""
    device = device_of(name, int(os.environ.get("LOCAL_RANK", how.get("rank", 0))))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **how)
    return device


def start(work: Callable[..., None], count: int, device: str, arguments: tuple[Any, ...]) -> None:
    """Run `work(device, *arguments)` in several processes on this machine.

    Raises:
        TrainingError: what the first process has raised, or that one has died.
    """
    for name, value in _KEEP_MEMORY.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory() as folder:
        address, said = f"file://{folder}/rendezvous", os.path.join(folder, "error")
        try:
            torch.multiprocessing.start_processes(  # type: ignore[attr-defined,no-untyped-call]
                _worker, (work, count, device, address, said, arguments), nprocs=count, start_method="spawn"
            )
        except torch.multiprocessing.ProcessExitedException as error:  # type: ignore[attr-defined]
            if os.path.exists(said):
                with open(said, encoding="utf-8") as file:
                    raise TrainingError(file.read()) from None
            raise TrainingError(f"a process of the training has died: {error}") from None


def _worker(
    rank: int,
    work: Callable[..., None],
    count: int,
    device: str,
    address: str,
    said: str,
    arguments: tuple[Any, ...],
) -> None:
    try:
        found = join(device, init_method=address, rank=rank, world_size=count)
        work(found, *arguments)
    except UnmaskError as error:
        # All processes stop for the same reason; the file that is there first is as good as any.
        with open(f"{said}-{rank}", "w", encoding="utf-8") as file:
            file.write(str(error))
        os.replace(f"{said}-{rank}", said)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    dist.destroy_process_group()
