"""The paper's content: its data, models, recipes and experiments, and how these are run and kept.

Only the command line imports it. An `Experiment` is a claim of the paper and the runs that test it; the modules of
``experiments`` declare them. `rootscale.paper.running.reproduce` makes the runs that are missing, and writes to a
folder what is small enough for a repository:

    OUT/experiment.json    claim, command, versions, hardware, seconds, and what is missing
    OUT/table.npz          every arm with its plan and the trajectories of all seeds (`rootscale.lab.Table`)

The heavy part, a folder with a checkpoint for every run, lies elsewhere.
"""
