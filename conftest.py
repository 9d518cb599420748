"""For tests and the examples in docstrings and documentation alike."""

import importlib.util

import torch

pytest_plugins = ["skips"]

# Tensors here are tiny: threads would only wait for each other, and pytest runs two workers on two cores.
torch.set_num_threads(1)

#: Integrations (module, documentation) and the library that each needs; without it they are not collected.
INTEGRATIONS = {
    "transformers": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "optax": "optax",
}
MISSING = {name: library for name, library in INTEGRATIONS.items() if importlib.util.find_spec(library) is None}
collect_ignore = [
    path
    for name in MISSING
    for path in (
        f"src/rootscale/integrations/{name}",
        f"src/rootscale/integrations/{name}.py",
        f"docs/integrations/{name}.md",
    )
]


def pytest_configure(config):
    """Files that are not collected are listed among the skips."""
    skips = config.pluginmanager.get_plugin("skips")
    config.stash[skips.UNCOLLECTED] = [f"not collected: needs {library}" for library in MISSING.values()]
