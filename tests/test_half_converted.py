"""A run cannot be half-converted: in whatever order it is loaded and converted, it is the right run or an error.

The run that is never interrupted makes 8 steps of 2 samples, 4 of 8 and 4 of 16. It is saved before the first change,
after it, and after the second one; fresh objects resume it in every order of the lines of a script.
"""

import importlib.util
from itertools import pairwise

import pytest
from resumed import FIRST, Accelerated, AcceleratedLate, Bare, HuggingFace, Lightning, SchedulerFirst, Sharded

from rootscale.training import rescale_, restore_

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.distributed.*:UserWarning"),
]

FRAMEWORKS = {
    "torch": Bare,
    "torch, scheduler first": SchedulerFirst,
    "accelerate": Accelerated,
    "accelerate, scheduler after prepare": AcceleratedLate,
    "DCP": Sharded,
}
#: The places of the checkpoints, in samples, with the changes that a script at that place knows of.
SAVED = {"before": (16, [4]), "after": (32, [4]), "twice": (80, [4, 2])}
SIZES = {0: 2, 16: 8, 48: 16}  # from which sample on
END = 112


def size_at(place):
    return [size for start, size in SIZES.items() if start <= place][-1]


def go_on(run, place, end=END):
    """Train to the end, with the changes of batch size that come after this place."""
    found = {}
    stops = sorted({place, end, *(start for start in SIZES if place < start < end)})
    for start, stop in pairwise(stops):
        if start in SIZES and start > place:
            run.rescale(batch_size=(size_at(start - 1), size_at(start)))
        found |= run.train(start, size_at(start), (stop - start) // size_at(start))
    return found


def fresh(framework, spelling):
    """The objects of a script, before anything is loaded."""
    run = FRAMEWORKS[framework]()
    if spelling == "tracked":
        run.track()
    return run


def never_interrupted(framework, folder, spelling):
    """The records of the run, and its checkpoints in folders of their names."""
    run, found, size = fresh(framework, spelling), {}, FIRST
    places = sorted({*SIZES, *(place for place, _ in SAVED.values()), END})
    for start, stop in pairwise(places):
        for name, (place, _) in SAVED.items():
            if place == start:
                (folder / name).mkdir()
                run.save(folder / name)
        if start and start in SIZES:
            run.rescale(**SPELLINGS[spelling](size, SIZES[start]))
            size = SIZES[start]
        found |= run.train(start, size, (stop - start) // size)
    return found


SPELLINGS = {
    "kappa": lambda old, new: {"kappa": new / old},
    "batch_size": lambda old, new: {"batch_size": (old, new)},
    "tracked": lambda old, new: {"batch_size": new},  # the run carries the old one
}


@pytest.fixture(scope="module", params=FRAMEWORKS)
def framework(request):
    if request.param.startswith("accelerate") and importlib.util.find_spec("accelerate") is None:
        pytest.skip("needs accelerate")
    return request.param


@pytest.fixture(scope="module", params=SPELLINGS)
def saved(request, framework, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return framework, request.param, folder, never_interrupted(framework, folder, request.param)


def convert(run, changes, spelling):
    size = FIRST
    for kappa in changes:
        run.rescale(**SPELLINGS[spelling](size, size * kappa))
        size *= kappa


SWAP = r"swap the two lines, first (optimizer|scheduler).load_state_dict\(...\) and then rescale_\(...\)"
RESTORE = r"after load_state_dict, call .*restore_\(optimizer, scheduler=scheduler, model=model, ema=ema\)"
ITSELF = r"after load_state_dict, call .*restore_\(optimizer, model=model, ema=ema\)"
ALREADY = r"converted already, to kappa = \d+.*: call rootscale.training.restore_\(.*leave rescale_ out"
RIGHT = None
#: What happens to whom: the right run, or an error with these words.
OUTCOMES = {
    ("load first", "before"): RIGHT,
    ("load first", "after"): ALREADY,
    ("load first", "twice"): ALREADY,
    ("rescale first", "before"): SWAP,
    ("rescale first", "after"): RIGHT,
    ("rescale first", "twice"): RIGHT,
    ("forgotten", "before"): RIGHT,
    ("forgotten", "after"): RESTORE,
    ("forgotten", "twice"): RESTORE,
    ("restored", "before"): RIGHT,
    ("restored", "after"): RIGHT,
    ("restored", "twice"): RIGHT,
}
#: DCP loads only keys that the fresh state has, so no units arrive in objects that are neither converted nor tracked.
#: The text in place of the scheduler's clock then leads to an error of torch's at the scheduler's first step.
LOADED, PART = "this LinearLR was loaded from a run that had been rescaled", "loaded in part.*rootscale.training.track_"
DCP = {
    ("load first", "after"): LOADED,
    ("load first", "twice"): LOADED,
    ("rescale first", "before"): "Missing key in checkpoint state_dict: optimizer.param_groups.0.rootscale_",
    ("forgotten", "after"): "can only concatenate str",
    ("forgotten", "twice"): "can only concatenate str",
    ("restored", "after"): PART,
    ("restored", "twice"): PART,
}
BY_SIZE = {("load first", "after"): RIGHT}  # the checkpoint says that it is there
TRACKED = BY_SIZE | {("forgotten", "after"): ITSELF, ("forgotten", "twice"): ITSELF}  # the scheduler restores itself


def outcome_of(framework, spelling, order, case):
    rows = dict(OUTCOMES)
    rows |= {"batch_size": BY_SIZE, "tracked": TRACKED}.get(spelling, {})
    if framework == "DCP" and spelling != "tracked":
        rows |= DCP
    return rows[order, case]


@pytest.mark.parametrize("case", SAVED)
@pytest.mark.parametrize("order", ["load first", "rescale first", "forgotten", "restored"])
def test_the_right_run_or_an_error_and_never_a_third_thing(saved, order, case):
    framework, spelling, folder, expected = saved
    place, changes = SAVED[case]
    outcome = outcome_of(framework, spelling, order, case)
    run = fresh(framework, spelling)

    def resume():
        if order == "rescale first":
            convert(run, changes, spelling)
        run.load(folder / case)
        if order == "load first":
            convert(run, changes, spelling)
        if order == "restored":
            run.restore()
        if case == "before" and order in ("forgotten", "restored"):  # goes on as it was
            return run.train(place, FIRST, 8)
        return go_on(run, place)

    if outcome is not None:
        with pytest.raises(BaseException, match=outcome):
            resume()
        return
    if case == "before" and order in ("forgotten", "restored"):
        unchanged = fresh(framework, spelling)
        unchanged.train(0, FIRST, 8)
        expected = unchanged.train(place, FIRST, 8)
    else:
        expected = {at: record for at, record in expected.items() if at >= place}
    check(resume(), expected)


def check(found, expected):
    assert list(found) == list(expected)
    for at in expected:
        assert found[at] == pytest.approx(expected[at], rel=1e-12), at


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    pytest.importorskip("lightning", reason="needs Lightning")
    folder = tmp_path_factory.mktemp("fits")
    return folder, Lightning(folder).fit(), Lightning(folder / "small", sizes=(2, 2)).fit(end=2)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", Lightning.saved)
@pytest.mark.parametrize("order", ["load first", "rescale first", "forgotten", "restored"])
def test_under_lightning_too(fits, tmp_path, order, case):
    folder, never_interrupted, never_converted = fits

    def convert(optimizers, parts):
        for kappa in SAVED[case][1] if order != "restored" else ():
            rescale_(optimizers, kappa, **parts)
        if order == "restored":
            restore_(optimizers, **parts)

    epoch = Lightning.saved[case]
    as_it_was = case == "before" and order in ("forgotten", "restored")
    run = Lightning(tmp_path, (2, 2)) if as_it_was else Lightning(tmp_path)
    go = lambda: run.fit(convert, order, folder / f"epoch={epoch}.ckpt", len(run.sizes))  # noqa: E731
    outcome = OUTCOMES[order, case]
    if outcome is not None:
        with pytest.raises(ValueError, match=outcome.replace(", ema=ema", "")):
            go()
        return
    expected = never_converted if as_it_was else never_interrupted
    check(go(), {at: record for at, record in expected.items() if at >= 16 * (epoch + 1)})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that is resumed at 8 and at 16 samples, with its checkpoints; each stage goes on to sample 112."""
    pytest.importorskip("transformers", reason="needs transformers")
    folder = tmp_path_factory.mktemp("trainer")
    stages, checkpoint = {}, None
    for size, stops in ((2, (16, 112)), (8, (32, 48, 112)), (16, (80, 112))):
        run = HuggingFace(folder / str(size), size)
        stages[size] = dict(run.train(*stops, checkpoint=checkpoint, converted=checkpoint is not None))
        checkpoint = folder / str(size) / f"checkpoint-{(16 if size == 2 else 48) // size}"
    return folder, stages


CALLBACK = r"the scheduler and BatchNorm's momentum are not: .* or transformers, give the Trainer its RescaleCallback"
#: Under the Trainer: `resume` loads and converts, a rescaled optimizer is given to it, or train() resumes by itself.
TRAINER = {
    ("load first", "before"): RIGHT,
    ("load first", "after"): RIGHT,
    ("load first", "twice"): RIGHT,
    ("rescale first", "before"): SWAP,
    ("rescale first", "after"): "this LambdaLR was converted by kappa = 4, and the state was saved at kappa = 1",
    ("rescale first", "twice"): "this LambdaLR was converted by kappa = 8, and the state was saved at kappa = 1",
    ("forgotten", "before"): r"written at batch size 2 and is resumed at 8: use .*resume\(trainer, checkpoint\)",
    ("forgotten", "after"): RIGHT,
    ("forgotten", "twice"): RIGHT,
    ("without the callback", "after"): CALLBACK,
    ("without the callback", "twice"): CALLBACK,
    ("batchnorm forgotten", "after"): r"and BatchNorm's momentum is not: .* call .*restore_\(optimizer, model=model\)",
    ("with the first arguments", "after"): CALLBACK,
    ("with the first arguments", "twice"): CALLBACK,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("order", "case"), TRAINER)
def test_under_the_trainer_too(trained, tmp_path, order, case):
    folder, stages = trained
    written, place = HuggingFace.saved[case]
    size = 8 if case == "before" else FIRST if order == "with the first arguments" else written
    changes = SAVED[case][1] if order == "rescale first" else ()
    run = HuggingFace(
        tmp_path, size, callback="with" not in order, batchnorm=order != "batchnorm forgotten", rescaled=changes
    )
    checkpoint = folder / str(written) / f"checkpoint-{place // written}"
    go = lambda: run.train(112, checkpoint=checkpoint, converted=order == "load first")  # noqa: E731
    if TRAINER[order, case] is not None:
        with pytest.raises(ValueError, match=TRAINER[order, case]):
            go()
        return
    check(go(), {at: record for at, record in stages[size].items() if at >= place})
