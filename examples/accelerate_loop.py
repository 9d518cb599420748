"""A loop with Hugging Face accelerate that continues with four times its batch size, by accumulation; some seconds.

pip install 'rootscale[accelerate]'
python examples/accelerate_loop.py
accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR

from rootscale.integrations.accelerate import rescale


def main() -> None:
    """Fit a noisy line: 64 steps, then 16 steps of four times the batch size each."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.95, 0.99))
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / (128 * accelerator.num_processes))
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    for step in range(64 + 16):
        if step == 64:
            changes = rescale(optimizer, 4, scheduler=scheduler)
            accelerator.print(changes)
        parts = 1 if step < 64 else 4
        for _ in range(parts):
            x = torch.randn(16, 8)
            loss = (model(x) - x.sum(1, keepdim=True) - torch.randn(16, 1)).square().mean()
            accelerator.backward(loss / parts)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 16 == 15:
            accelerator.print(f"step {step + 1:3}, lr {scheduler.get_last_lr()[0]:.5f}, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
