"""A loop with Hugging Face accelerate that goes on with four times its batch size, by accumulation; some seconds.

pip install 'rootscale[accelerate]'
python examples/accelerate_loop.py
accelerate launch --multi_gpu --num_processes 2 examples/accelerate_loop.py

`--multi_gpu` is what starts two processes, also on a machine without GPUs; with `--cpu` there is one, whatever
`--num_processes` says. They have different samples, because `accelerator.prepare` shares the loader's batches out.
"""

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from rootscale.integrations.accelerate import run


def main() -> None:
    """Fit a noisy line: half of the samples at a micro-batch of 16 for each process, then four of them for a step."""
    accelerator = Accelerator(cpu=True)
    processes = accelerator.num_processes
    torch.manual_seed(0)
    x = torch.randn(128 * 16, 8)
    data = TensorDataset(torch.arange(len(x)), x, x.sum(1, keepdim=True) + torch.randn(len(x), 1))
    model = torch.nn.Linear(8, 1)
    # These numbers, and the 128 steps of the schedule, were tuned at a batch size of 16.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.95, 0.99))
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / 128)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    follow = run(accelerator, optimizer, tuned_at=16, batch_size=16 * processes, scheduler=scheduler, model=model)

    batches, seen, parts = iter(loader), [], 1
    while follow.samples < len(x):
        if follow.samples == len(x) // 2:
            parts, follow.batch_size = 4, 4 * 16 * processes
            accelerator.print(follow)
        for _ in range(parts):
            numbers, inputs, labels = next(batches)
            seen.append(numbers)
            loss = (model(inputs) - labels).square().mean()
            accelerator.backward(loss / parts)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if follow.samples % 256 == 0:
            used = follow.values()["lr"]
            accelerator.print(f"{follow.samples:5.0f} samples, lr of a step {used:.5f}, loss {loss.item():.3f}")
    everywhere = accelerator.gather(torch.cat(seen))
    number, different = len(everywhere), len(everywhere.unique())
    accelerator.print(f"{processes} processes, {number} samples, {different} of them different")
    accelerator.end_training()


if __name__ == "__main__":
    main()
