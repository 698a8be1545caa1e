"""Several processes, started by torchrun: each computes its part of every batch, the first one writes and speaks.

A program started by itself is a world of one, for which all of this does nothing.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import UserError


@dataclass(frozen=True)
class World:
    """The processes of a run, under torch.distributed's names."""

    rank: int = 0  # the number of this process, from 0
    size: int = 1
    local_rank: int = 0  # its number on this machine: the GPU it takes

    def add_up(self, *values: Tensor) -> None:
        """Replace each tensor by its sum over the processes."""
        if self.size > 1:
            for value in values:
                torch.distributed.all_reduce(value)

    def highest(self, value: int) -> int:
        """The highest of the processes' numbers, the same for all. Does not wait for a GPU."""
        if self.size == 1:
            return value
        number = torch.tensor(value)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        return int(number)

    def of_first(self, make: Callable[[], Any]) -> Any:
        """What the first process makes, for all. The others wait for it, and share a mistake of the user's that it meets."""
        if self.size == 1:
            return make()
        made = [None]
        if self.rank == 0:
            try:
                made = [make()]
            except (UserError, OSError) as error:
                made = [error]
        torch.distributed.broadcast_object_list(made)
        if isinstance(made[0], Exception):
            raise made[0]
        return made[0]

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, by rank."""
        values = [value] * self.size
        if self.size > 1:
            torch.distributed.all_gather_object(values, value)
        return values

    @contextlib.contextmanager
    def one_first(self) -> Iterator[None]:
        """One process of each machine does what the block says before the others do the same."""
        if self.size > 1 and self.local_rank:
            torch.distributed.barrier()
        yield
        if self.size > 1 and not self.local_rank:
            torch.distributed.barrier()


def join_world() -> World:
    """Meet the other processes that torchrun started, unless that was done before; all but the first fall silent. Raises UserError
    for a world that cannot meet."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        return World()
    try:
        world = World(int(os.environ["RANK"]), int(size), int(os.environ["LOCAL_RANK"]))
        if torch.distributed.is_initialized():
            return world
        # gloo carries numbers of the host at no cost to a GPU, NCCL all the rest
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    except (KeyError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the environment says WORLD_SIZE={size}, but the processes cannot meet ({str(error)[:80]}); torchrun would start them, "
            "and a single one needs no WORLD_SIZE"
        ) from None
    if world.rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return world


def leave_world() -> None:
    """Part from the other processes."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def share(model: torch.nn.Module, world: World, device: torch.device, shard: bool) -> torch.nn.Module:
    """The module to call in training. All processes hold all of the model and average their gradients (DistributedDataParallel),
    or with `shard` each holds a part of every layer (FSDP2, Zhao et al. 2023) and `model` itself is changed."""
    if world.size == 1:
        return model
    if not shard:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    warnings.filterwarnings("ignore", message=".*returned a view tensor")  # the logits, which nobody changes in place
    mesh = init_device_mesh(device.type, (world.size,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "next_logits")
    return model


def whole(tree: Any) -> Any:
    """The tree with each tensor that is spread over processes put together. All processes must call it at once."""
    if hasattr(tree, "full_tensor"):
        return tree.full_tensor()
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    return [whole(value) for value in tree] if isinstance(tree, list) else tree


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This process's part of a whole tensor, spread as `parameter` is; the tensor itself when that is not spread."""
    if not hasattr(parameter, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None)
