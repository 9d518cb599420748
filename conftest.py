"""For tests and the examples in docstrings and documentation alike."""

import torch

# Tensors here are tiny: threads would only wait for each other, and pytest runs two workers on two cores.
torch.set_num_threads(1)
