"""Train a small model on all tasks of a Slurm job: a start for your own script. See ddp.sh."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Fit a line through points. Each task has its own points, and all have the same model after each step."""
    rank, tasks, local = (int(os.environ[f"SLURM_{name}"]) for name in ("PROCID", "NTASKS", "LOCALID"))
    # NCCL connects GPUs. Without a usable GPU, gloo connects CPUs.
    has_gpu = torch.cuda.is_available()
    backend = "nccl" if has_gpu else "gloo"
    device = torch.device("cuda", local % torch.cuda.device_count()) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    # Reads MASTER_ADDR and MASTER_PORT.
    dist.init_process_group(backend, rank=rank, world_size=tasks, timeout=timedelta(minutes=5))
    print(f"rank {rank} of {tasks} on {os.environ['SLURMD_NODENAME']}: {backend}", flush=True)

    torch.manual_seed(rank)
    points = torch.rand(256, 1, device=device)
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(201):
        loss = torch.nn.functional.mse_loss(model(points), 3 * points + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step}: loss {total.item() / tasks:.6f}", flush=True)

    # The gradients were averaged over the tasks, so all have the same parameters.
    parameters = torch.cat([one.detach().flatten() for one in model.parameters()])
    found = [torch.empty_like(parameters) for _ in range(tasks)]
    dist.all_gather(found, parameters)
    print(f"rank {rank}: parameters {parameters.tolist()}", flush=True)
    dist.destroy_process_group()
    if not all(torch.equal(one, parameters) for one in found):
        raise SystemExit(f"rank {rank}: other tasks have other parameters")


if __name__ == "__main__":
    main()
