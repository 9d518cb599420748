"""What a user would write without rootscale to go on with AdamW at ``kappa`` times the batch size: plain torch.

It is what the tests of the integrations compare with: a checkpoint of the script's batch size is loaded, every number
and every piece of state is converted by the formulas of the paper, and the steps are made in a bare loop.
"""

import math

import torch


def converted(saved, kappa):
    """An AdamW's state at ``kappa`` times the batch size, with betas that reach no floor; learning rates come later."""
    groups = []
    for group in saved["param_groups"]:
        betas = tuple(1 - kappa * (1 - beta) for beta in group["betas"])
        assert betas[0] >= 0.9
        change = {"eps": group["eps"] / math.sqrt(kappa), "weight_decay": group["weight_decay"] * math.sqrt(kappa)}
        groups.append({**group, **change, "betas": betas})
    state = {}
    for key, held in saved["state"].items():
        state[key] = {
            "step": held["step"].double() / kappa,
            "exp_avg": held["exp_avg"].clone(),
            "exp_avg_sq": held["exp_avg_sq"] / kappa,
        }
    return {"state": state, "param_groups": groups}


def go_on(model, groups, saved, kappa, batches, loss, rate, start, clip=None, **kernel):
    """Make the steps of some batches, from step ``start`` of the script on, and return the parameters.

    Args:
        model: with the parameters of the checkpoint.
        groups: its parameters, as the script gives them to the optimizer.
        saved: the optimizer's state in the checkpoint.
        kappa: new batch size over the script's.
        batches: of the new size.
        loss: of a model and a batch.
        rate: the script's learning rate at a step of the script.
        start: the steps that the checkpoint has made.
        clip: the script's.
        kernel: torch's option that chooses how a step is computed; their roundings differ.
    """
    optimizer = torch.optim.AdamW(groups, **(kernel or {"foreach": False}))
    optimizer.load_state_dict(converted(saved, kappa))
    for i, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = math.sqrt(kappa) * rate(math.floor(start + i * kappa + 1e-9))
        optimizer.zero_grad()
        loss(model, batch).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip / math.sqrt(kappa))
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]
