"""An optimizer in a `Run`: its groups keep the numbers of the script, and its steps are made at the batch size of now.

- **A step.** Before it, torch's hook writes what a step of ``kappa`` times the samples needs; after it, also after one
  that raises, the script's numbers are back. A closure runs with the script's numbers.
- **The state** (``exp_avg_sq``, step counters) is in the units of now, and converted when the batch size changes.
- **A checkpoint**, a copy and a pickle hold the script's numbers and state in the script's units: they are valid at
  every batch size, with rootscale and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rootscale.changes import Change
from rootscale.format import show
from rootscale.spellings.libraries import spelled
from rootscale.training.adapters import family_of_group, row_of
from rootscale.training.attachment import Attachment
from rootscale.training.projection import GroupProjection, numbers_of
from rootscale.training.state import Remainders, StateScaling, check_known, copied

if TYPE_CHECKING:
    from rootscale.optimizers import Family
    from rootscale.rules import Rule

#: Where the clock of an optimizer without a step counter (SGD, Lion, Muon) stands in a checkpoint: in its first group.
CLOCK = "rootscale_clock"
_MARKER = "rootscale_"
_Entry = tuple[dict[str, Any], str, Any, Any]  # group, key, what the script had there, a copy of it if it is a tensor


def is_projected(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a `Run` makes the steps of an optimizer."""
    return projected_of(optimizer) is not None


def projected_of(optimizer: torch.optim.Optimizer) -> ProjectedOptimizer | None:
    """Return what makes the steps of an optimizer in a `Run`; None where it is in no run."""
    for hook in getattr(optimizer, "_optimizer_step_pre_hooks", {}).values():
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, ProjectedOptimizer):
            return owner
    return None


class ProjectedOptimizer:
    """Make the steps of an optimizer at ``kappa`` times the batch size that its numbers were tuned at.

    Args:
        optimizer: of a known family, or with groups of several.
        rules: the rule of each of its families, by name.
        prefix: names it in reports where there are several.

    Attributes:
        kappa: the batch size of now over that of the script.
        steps: made since this object exists.
        steps_since_load: the same since a state was loaded; libraries make a step to have one that they can load into.
        before_step: called before the numbers of a step are written, when its gradients are there.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rules: Mapping[str, Rule], prefix: str = "") -> None:
        self.optimizer, self.rules, self.prefix = optimizer, rules, prefix
        self.kappa, self.steps, self.steps_since_load = 1.0, 0, 0
        self._depth = 0  # of steps within steps
        self.before_step: Callable[[], None] | None = None
        self._row = row_of(optimizer)
        self._projections: dict[int, tuple[Any, GroupProjection]] = {}
        self._remainders: Remainders = {}
        self._script: list[_Entry] | None = None  # the script's numbers, while a step is made
        self._clock, self._skipped = 0.0, None  # type: float, Tensor | None
        self._loading: float | None = None
        self._seen = False
        check_markers(optimizer.param_groups)  # of a checkpoint that was loaded before this object was made
        for group in optimizer.param_groups:
            self.projection(group)
        self._check_shared()
        self._clock = float(next((group[CLOCK] for group in optimizer.param_groups if CLOCK in group), self._counted()))
        self._borrowed = False
        self._handles: list[Any] = []
        self._attachments: list[Attachment] = []

    # ---- attached and detached

    def borrow(self) -> None:
        """Copy the state before the first change of it: torch loads the tensors of a checkpoint as they are."""
        self._borrowed = bool(self.optimizer.state)

    def attach(self) -> None:
        """Take over the steps and the checkpoints."""
        optimizer: Any = self.optimizer
        for group in optimizer.param_groups:  # the clock is here from now on
            for key in [key for key in group if str(key).startswith(_MARKER)]:
                del group[key]
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_post_hook(self._saved),
            optimizer.register_load_state_dict_pre_hook(self._before_load),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]
        own: dict[str, Callable[..., Any]] = {"state_dict": self._own_save, "load_state_dict": self._own_load}
        overridden = {  # an optimizer that has its own may not call torch's hooks
            name: method
            for name, method in own.items()
            if getattr(type(optimizer), name) is not getattr(torch.optim.Optimizer, name)
        }
        methods = {"step": self._safe_step, **overridden}
        self._attachments = [Attachment(optimizer, methods, self._copy)]

    def detach(self) -> None:
        """Leave the optimizer in the script's units, as if it had never been in a run."""
        self.scaling(1.0).finish()
        self.arrive(1.0)
        for one in (*self._handles, *self._attachments):
            one.remove()
        self._handles, self._attachments = [], []

    @property
    def families(self) -> list[tuple[str, str]]:
        """Each family of its groups, with the name of its rule."""
        return [(name, rule.name) for name, rule in self.rules.items()]

    def follow(self, rules: Mapping[str, Rule]) -> None:
        """Take other rules, at the script's own batch size, where all rules agree."""
        assert self.kappa == 1
        self.rules = rules
        self._projections.clear()

    # ---- the numbers of a step

    def projection(self, group: dict[str, Any]) -> GroupProjection:
        """Return how a group is projected; groups may be added at any time."""
        held = self._projections.get(id(group))
        if held is None or held[0] is not group["params"]:
            family = spelled(self._row, family_of_group(self._row, self.optimizer, group))
            if family.name not in self.rules:
                raise ValueError(
                    f"a group of {family.name} was added to an {type(self.optimizer).__name__} whose run was made "
                    f"with {', '.join(self.rules)}: add all groups first, and make the Run after them"
                )
            held = group["params"], GroupProjection(family, self.rules[family.name], group)
            self._projections[id(group)] = held
        return held[1]

    def groups(self) -> Iterator[tuple[int, dict[str, Any], GroupProjection]]:
        """Yield the groups with their numbers and projections."""
        for i, group in enumerate(self.optimizer.param_groups):
            yield i, group, self.projection(group)

    def _check_shared(self) -> None:
        """Refuse a tensor that groups share as a hyperparameter, if it converts differently in them."""
        factors: dict[int, float | None] = {}
        for _, group, projection in self.groups():
            for key in projection.units:
                if isinstance(group[key], Tensor):
                    factor = projection.factor(key, 4.0)
                    if factors.setdefault(id(group[key]), factor) != factor:
                        raise ValueError(
                            f"groups share a tensor as their {key}, which converts differently in them; give each a "
                            "tensor of its own"
                        )

    def check(self, kappa: float) -> None:
        """Refuse a batch size at which a group has no valid value."""
        for _, group, projection in self.groups():
            for key in projection.units:
                held = group[key]
                for item in held if isinstance(held, tuple | list) else (held,):
                    if isinstance(item, Tensor) and item.is_inference() and not torch.is_inference_mode_enabled():
                        raise TypeError(
                            f"the optimizer's {key} is an inference tensor, which cannot be changed in place; replace "
                            "it by its clone(), made outside of torch.inference_mode()"
                        )
            projection.check(group, kappa)

    def enter(self) -> None:
        """Write what a step of now needs into the groups, all or nothing."""
        if self._script is not None or self.kappa == 1:
            return
        entries: list[tuple[_Entry, Any]] = []
        shared: set[int] = set()
        for _, group, projection in self.groups():
            for key in projection.units:
                held = group[key]
                if not isinstance(held, Tensor):
                    entries.append(((group, key, held, None), projection.at(key, held, self.kappa)))
                elif id(held) not in shared:
                    shared.add(id(held))
                    factor = projection.factor(key, self.kappa)
                    new = projection.at(key, held, self.kappa) if factor is None else held.detach() * factor
                    entries.append(((group, key, held, held.detach().clone()), new))
        self._script = []
        for (group, key, held, before), new in entries:
            if isinstance(held, Tensor):
                self._script.append((group, key, held, before))
                _fill(held, new)
            elif _has_tensors(held):
                self._script.append((group, key, held, [_copy_of(item) for item in held]))
                group[key] = type(held)([_filled(item, value) for item, value in zip(held, new, strict=True)])
            else:
                self._script.append((group, key, held, None))
                group[key] = new

    def leave(self) -> None:
        """Put the script's numbers back."""
        entries, self._script = self._script, None
        for group, key, held, before in reversed(entries or ()):  # tensors that groups share were written repeatedly
            if isinstance(held, Tensor):
                _fill(held, before)
            else:
                group[key] = held
            if isinstance(before, list):
                for item, value in zip(held, before, strict=True):
                    _filled(item, value)

    def write(self, kappa: float, written: set[int]) -> None:
        """Write the numbers of a step for good: into the groups, and the defaults that groups added later start from.

        Args:
            kappa: new batch size over old one.
            written: ids of the tensors that were filled already, as optimizers may share one; it is added to.
        """
        for _, group, projection in self.groups():
            for key in projection.units:
                value = group[key]
                new = projection.at(key, value, kappa)
                if isinstance(value, Tensor):
                    if id(value) not in written:
                        written.add(id(value))
                        value.detach().fill_(new)
                elif _has_tensors(value):
                    for item, number in zip(value, numbers_of(new), strict=True):
                        item.detach().fill_(number)
                else:
                    group[key] = new
        defaults: Any = self.optimizer.defaults
        (_, _, first), *_ = self.groups()
        for key in first.units:
            value = defaults.get(key)
            if value is not None and not isinstance(value, Tensor):
                try:
                    defaults[key] = first.at(key, value, kappa)
                except ValueError:  # it has no value there; no parameter follows it
                    continue

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            raise RuntimeError(_COMPILED)
        self._depth += 1
        if self._depth > 1:  # a class whose step calls that of the class it inherits from: torch hooks both
            return None
        self.leave()  # a step that raised where nobody could see it
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None or not callable(closure):
            self._look()
            self.enter()
            return None

        def outside(*values: Any, **named: Any) -> Any:
            self.leave()
            loss = closure(*values, **named)
            self._look()
            self.enter()
            return loss

        self.enter()
        if "closure" in kwargs:
            return args, {**kwargs, "closure": outside}
        return (args[0], outside, *args[2:]), kwargs

    def _look(self) -> None:
        if self.before_step is not None:
            self.before_step()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        self.leave()
        self.steps += 1
        self.steps_since_load += 1
        self._clock += self.kappa
        found = getattr(optimizer, "found_inf", None)
        if isinstance(found, Tensor):  # a fused step that GradScaler skips; it is read when the clock is
            skipped = found.detach() * self.kappa
            self._skipped = skipped if self._skipped is None else self._skipped + skipped

    def _safe_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._depth = 0
        try:
            return original(*args, **kwargs)
        except BaseException:
            self._depth = 0
            self.leave()
            raise

    @property
    def in_step(self) -> bool:
        """Whether the numbers of a step are written now."""
        return self._script is not None

    # ---- the state

    def _factors(self, kappa: float) -> dict[int, dict[str, float]]:
        """Return what the state of each group is multiplied by, from the script's batch size to ``kappa`` times it.

        The groups' present values decide, as they do for a step: nothing is remembered, so groups may be added and
        betas be cycled between two changes, and what is saved is loaded as it was.
        """
        found = {}
        for i, group, projection in self.groups():
            units = {*projection.family.torch_state_units().values()}
            units |= {projection.family.state[key] for key in projection.family.torch.group_state.values()}
            found[i] = {unit: projection.state_factor(unit, group, kappa) for unit in units - {"beta3"}}
        return found

    def _families(self) -> Iterator[tuple[Family, list[dict[str, Any]], bool]]:
        for _, group, projection in self.groups():
            states = [self.optimizer.state[p] for p in group["params"] if p in self.optimizer.state]
            changes = projection.rule.form("mu").kind != "kept" and "mu" in projection.values(group)
            yield projection.family, states, changes

    def scaling(self, kappa: float) -> StateScaling:
        """Check the change of the live state to ``kappa`` times the script's batch size, and return it."""
        if self._borrowed and kappa != self.kappa:
            self._own_state()
        for family, states, changes in self._families():
            check_known(family, states, changes and kappa != 1)
        current, wanted, scaling = self._factors(self.kappa), self._factors(kappa), StateScaling(self._remainders)
        for i, group, projection in self.groups():

            def factor(unit: str, i: int = i) -> float:
                return wanted[i].get(unit, 1.0) / current[i].get(unit, 1.0)

            copies = projection.values(group, kappa)
            for parameter in group["params"]:
                if parameter in self.optimizer.state:
                    scaling.add(self.optimizer.state[parameter], projection.family, factor, copies)
            scaling.add_group(group, projection.family, factor)
        return scaling

    def arrive(self, kappa: float) -> None:
        """Note that state has been brought to ``kappa`` times the script's batch size."""
        self.kappa = kappa

    def changes(self, kappa: float) -> list[Change]:
        """Return the rows to report: the script's number and that of a step."""
        rows: list[Change] = []
        several = len(self.optimizer.param_groups) > 1
        for i, group, projection in self.groups():
            rows += projection.changes(group, kappa, f" (group {i})" if several else "")
        return rows

    def state_changes(self, kappa: float) -> list[Change]:
        """Return the rows of the state: the factor of each piece."""
        rows: dict[tuple[str, float], Change] = {}
        for i, group, projection in self.groups():
            factors = self._factors(kappa)[i]
            held = {name.partition("[")[0] for p in group["params"] for name in self.optimizer.state.get(p, {})}
            for name, unit in projection.family.torch_state_units().items():
                if name.partition("[")[0] in held and unit in factors:
                    rows[name, factors[unit]] = Change(
                        f"factor of {name}", 1.0, factors[unit], projection.rule.units.get(unit)
                    )
        return list(rows.values())

    # ---- the clock

    @property
    def has_counter(self) -> bool:
        """Whether the state counts steps, so that a checkpoint has the clock already."""
        return all("step" in projection.family.torch.parameter_state for _, _, projection in self.groups())

    def _counted(self) -> float:
        """Return the steps that the state has counted, in the script's units (when ``kappa`` is 1)."""
        counts = [
            float(state["step"])
            for state in self.optimizer.state.values()
            if isinstance(state, Mapping) and isinstance(state.get("step"), int | float | Tensor)
        ]
        return max(counts, default=0.0)

    @property
    def clock(self) -> float:
        """The steps made, counted in steps of the script's batch size."""
        if self._skipped is not None:
            self._clock -= float(self._skipped)
            self._skipped = None
        return self._clock

    def set_clock(self, clock: float) -> None:
        """Let the clock stand at so many steps of the script's batch size."""
        self._clock, self._skipped = clock, None

    # ---- checkpoints and copies

    def _packed(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a checkpoint in the script's units; the live state is left as it is."""
        new = {**state_dict, "param_groups": [dict(group) for group in state_dict["param_groups"]]}
        if not self.has_counter and new["param_groups"]:
            new["param_groups"][0][CLOCK] = self.clock
        if self.kappa == 1:
            return new
        exact: Remainders = {}
        factors, new["state"], scaling = self._factors(self.kappa), dict(state_dict["state"]), StateScaling(exact)
        for i, group, projection in self.groups():
            packed = new["param_groups"][i]

            def factor(unit: str, i: int = i) -> float:
                return 1.0 / factors[i].get(unit, 1.0)

            copies = projection.values(group)
            for parameter, key in zip(group["params"], packed["params"], strict=True):
                if key in new["state"]:
                    state = copied(new["state"][key], projection.family, factor)
                    self._copy_remainders(exact, state, self.optimizer.state.get(parameter))
                    scaling.add(state, projection.family, factor, copies)
                    new["state"][key] = state
            for name in projection.family.torch.group_state:
                if name in packed:
                    packed[name] = _copy_of(packed[name])
            self._copy_remainders(exact, packed, group)
            scaling.add_group(packed, projection.family, factor)
        scaling.finish()
        return new

    def _copy_remainders(self, to: Remainders, copy: Any, live: Any) -> None:
        """Let the whole numbers of a copy be read as the exact ones, of which the live ones are rounded."""
        to.update({(id(copy), name): rest for (held, name), rest in self._remainders.items() if held == id(live)})

    def _saved(self, optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        self._seen = True
        return self._packed(state_dict)

    def _own_save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._seen = False
        state_dict = original(*args, **kwargs)
        return state_dict if self._seen else self._packed(state_dict)

    def _copy(self) -> dict[str, Any]:
        """Return what ``copy`` and ``pickle`` see: an ordinary optimizer in the script's units."""
        packed: Any = {
            "state": dict(self.optimizer.state),
            "param_groups": [dict(group) for group in self.optimizer.param_groups],
        }
        packed = self._packed(packed)
        for group in packed["param_groups"]:
            group.pop(CLOCK, None)
        kind = type(self.optimizer.state)
        state: Any = kind(dict) if kind is not dict else {}
        state.update(packed["state"])
        own: Any = type(self.optimizer).__getstate__(self.optimizer)
        return {**own, "state": state, "param_groups": packed["param_groups"]}

    def _before_load(self, optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        groups = [dict(group) for group in state_dict["param_groups"]]
        check_markers(groups)
        clocks = [group.pop(CLOCK) for group in groups if CLOCK in group]
        self._loading = float(clocks[0]) if clocks else None
        self._seen = True
        return {
            **state_dict,
            "param_groups": [{k: v for k, v in group.items() if not str(k).startswith(_MARKER)} for group in groups],
        }

    def _after_load(self, optimizer: Any) -> None:
        """Bring what was loaded, which is in the script's units, to those of now."""
        kappa, self.kappa, self._remainders = self.kappa, 1.0, {}
        self._projections, self._script = {}, None
        self._clock, self._skipped = self._counted() if self._loading is None else self._loading, None
        self._loading, self.steps_since_load = None, 0
        self._own_state()
        if kappa != 1:
            self.scaling(kappa).finish()
            self.arrive(kappa)

    def _own_state(self) -> None:
        """Copy what changes would multiply: it may be held by others, such as a checkpoint that is loaded twice."""
        self._borrowed = False
        for _, group, projection in self.groups():
            for parameter in group["params"]:
                if parameter in self.optimizer.state:
                    held = self.optimizer.state[parameter]
                    held.update(copied(held, projection.family, lambda unit: 0.0))

    def _own_load(self, original: Callable[..., Any], state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._seen = False
        prepared = self._before_load(self.optimizer, state_dict)
        loading, self._seen = self._loading, False
        result = original(prepared, *args, **kwargs)
        if not self._seen:
            self._loading = loading
            self._after_load(self.optimizer)
        elif loading is not None:
            self._clock = loading
        return result


def _has_tensors(held: Any) -> bool:
    return isinstance(held, tuple | list) and any(isinstance(item, Tensor) for item in held)


def _copy_of(item: Any) -> Any:
    return item.detach().clone() if isinstance(item, Tensor) else item


@torch.no_grad()
def _fill(tensor: Tensor, value: Any) -> None:
    if isinstance(value, Tensor):
        tensor.copy_(value)
    else:
        tensor.fill_(value)


def _filled(item: Any, value: Any) -> Any:
    """Return what a group holds for a value: the tensor that was there, filled, or the value itself."""
    if not isinstance(item, Tensor):
        return value
    _fill(item, value)
    return item


_COMPILED = (
    "torch.compile cannot see the numbers that a Run writes before each step: compile the model, and call "
    "optimizer.step() outside of the compiled function"
)


def check_markers(groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a checkpoint whose numbers were converted in place by rootscale 0.1; it is not in the script's units."""
    for group in groups:
        kappa = group.get("rootscale_kappa", 1.0)
        if abs(float(kappa) - 1) > 1e-9:
            raise ValueError(
                f"this checkpoint was converted in place by rootscale 0.1 (kappa = {show(float(kappa))}), so that its "
                f"numbers are not those of the script: load it with that version, call rescale_(optimizer, "
                f"{show(1 / float(kappa))}) there, and save it again"
            )
