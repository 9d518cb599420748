"""Experiments of the paper that can be run again: what one is, how it is run in pieces, and what is kept of it.

An `Experiment` is a claim of the paper and the runs that test it; the files in ``experiments/`` declare them.
`reproduce` makes the runs that are missing, and writes to a folder what is small enough for a repository:

    OUT/experiment.json    claim, command, versions, hardware, seconds, and what is missing
    OUT/check.json         every arm with its plan, and how it compares with the base (`rootscale.lab.Check`)
    OUT/arm-<i>.npz        its trajectory, all seeds together; warm.npz up to a switch in mid-run

The table of final values is made of the trajectories (`finals_of`). The heavy part, a folder with a checkpoint for
every run (`rootscale.lab.sweep`), lies elsewhere. An experiment may be stopped at any time and goes on from there;
several processes may work on one at once, and make no run twice.
"""

from rootscale.finals import ACCURACY, MEASURES, End, Final, accuracies, finals, percent, told, told_gap
from rootscale.reproduce.experiment import Experiment, Line, Options, Stored, experiments, load_file
from rootscale.reproduce.parts import BASE, TITLES, cifar10_task, kappa, kept, label_of, place_of, settings_for, size_of
from rootscale.reproduce.running import Clock, Runs, reproduce
from rootscale.reproduce.stored import finals_of, outcome, record_of, table

__all__ = [
    "ACCURACY",
    "BASE",
    "MEASURES",
    "TITLES",
    "Clock",
    "End",
    "Experiment",
    "Final",
    "Line",
    "Options",
    "Runs",
    "Stored",
    "accuracies",
    "cifar10_task",
    "experiments",
    "finals",
    "finals_of",
    "kappa",
    "kept",
    "label_of",
    "load_file",
    "outcome",
    "percent",
    "place_of",
    "record_of",
    "reproduce",
    "settings_for",
    "size_of",
    "table",
    "told",
    "told_gap",
]
