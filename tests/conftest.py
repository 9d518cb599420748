import torch
from hypothesis import settings

# The nets here are tiny: threads would only wait for each other, and pytest runs two workers on two cores.
torch.set_num_threads(1)

# The same examples every time, however busy the machine is.
settings.register_profile("rootscale", deadline=None, derandomize=True)
settings.load_profile("rootscale")
