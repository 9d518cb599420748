"""A loop with Hugging Face accelerate that continues with four times its batch size, by accumulation; some seconds.

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

from rootscale.integrations.accelerate import rescale


def main() -> None:
    """Fit a noisy line: 64 steps, then 16 steps of four times the batch size each."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(128 * 16 * accelerator.num_processes, 8)
    data = TensorDataset(torch.arange(len(x)), x, x.sum(1, keepdim=True) + torch.randn(len(x), 1))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.95, 0.99))
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / (128 * accelerator.num_processes))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    batches, seen = iter(loader), []
    for step in range(64 + 16):
        if step == 64:
            changes = rescale(optimizer, 4, scheduler=scheduler)
            accelerator.print(changes)
        parts = 1 if step < 64 else 4
        for _ in range(parts):
            numbers, inputs, labels = next(batches)
            seen.append(numbers)
            loss = (model(inputs) - labels).square().mean()
            accelerator.backward(loss / parts)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 16 == 15:
            accelerator.print(f"step {step + 1:3}, lr {scheduler.get_last_lr()[0]:.5f}, loss {loss.item():.3f}")
    everywhere = accelerator.gather(torch.cat(seen))
    number, different = len(everywhere), len(everywhere.unique())
    accelerator.print(f"{accelerator.num_processes} processes, {number} samples, {different} of them different")
    accelerator.end_training()


if __name__ == "__main__":
    main()
