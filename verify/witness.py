"""Runs that must be possible: each is executed, so that no proof holds for want of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Index
from kvproof.spec.rows import Witness
from kvproof.spec.text import text
from kvproof.spec.walk import free_indices
from kvproof.verify.program import Run, program
from kvproof.verify.simulator import Refused, Simulator, State
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict


def check_witnesses(declaration: Declaration) -> list[Result]:
    """Return, for each witness, that its run is possible, keeps the invariants, and ends as said.

    The run is executed from the initial state; every invariant is evaluated after every step.
    """
    return [_check(declaration, witness) for witness in declaration.witnesses]


def _check(declaration: Declaration, witness: Witness) -> Result:
    start = time.process_time()
    fault = _fault(declaration, witness)
    return Result(
        f"{witness.name} runs",
        "L2",
        "",
        Method.WITNESS,
        Verdict.PROVED if fault is None else Verdict.REFUTED,
        time.process_time() - start,
        fault,
    )


def _fault(declaration: Declaration, witness: Witness) -> Counterexample | None:
    """Return what goes wrong first in the run of a witness, if anything does."""
    run = Run(declaration, witness.constants, instances_of(declaration, witness))
    simulator = Simulator(declaration, run.constants, run.instances)
    fault = _broken_invariant(run, simulator, None)
    for row, *arguments in witness.steps:
        if fault is not None:
            return fault
        earlier = simulator.snapshot()
        refusal = _refusal(simulator, str(row), arguments)
        run = evolve(run, steps=(*run.steps, (str(row), tuple(map(int, arguments)))))
        if refusal:
            where = f"step {len(run.steps)} of {witness.name}"
            return Counterexample(f"{where}: {refusal}", str(row), program=program(run))
        if not witness.unsafe:
            fault = _broken_invariant(run, simulator, earlier)
    return fault or _wrong_end(run, simulator, witness)


def _refusal(simulator: Simulator, row: str, arguments: Sequence[str | int | bool]) -> str:
    """Execute one step; return why it was refused, or nothing."""
    try:
        getattr(simulator, row)(*arguments)
    except (Refused, TypeError, ValueError) as refusal:
        return str(refusal)
    return ""


def _broken_invariant(
    run: Run, simulator: Simulator, earlier: State | None
) -> Counterexample | None:
    """Return the first invariant that the last step broke; `earlier` is the state before it."""
    names = simulator.violations()
    names += [] if earlier is None else simulator.step_violations(earlier)
    if not names:
        return None
    row = run.steps[-1][0] if run.steps else ""
    broken = next(item for item in run.declaration.all_invariants if item.name == names[0])
    cause = f"step {len(run.steps)}, {row}," if row else "the initial state"
    reason = f"{cause} breaks {broken.name}: {broken.sentence}"
    return Counterexample(reason, row, program=program(run, broken))


def _wrong_end(run: Run, simulator: Simulator, witness: Witness) -> Counterexample | None:
    if witness.ends is None or simulator.holds(witness.ends):
        return None
    slots = dict.fromkeys(simulator.layout.slots_in(witness.ends, {}))
    seen = (f"{simulator.layout.names[slot]} = {simulator.shown(slot)}" for slot in slots)
    reason = f"{witness.name} does not end with {text(witness.ends)}; {', '.join(seen)}"
    return Counterexample(reason, program=program(run))


def instances_of(declaration: Declaration, witness: Witness) -> dict[str, int]:
    """Return how many instances a witness speaks of, for each role without a fixed number."""
    roles = [role for role in declaration.roles if not role.single and role.count is None]
    numbers: dict[str, list[int]] = {role.name: [role.first] for role in roles}
    for role, number in _numbered(declaration, witness):
        numbers.setdefault(role, []).append(number)
    return {role.name: 1 + max(numbers[role.name]) - role.first for role in roles}


def _numbered(declaration: Declaration, witness: Witness) -> Iterator[tuple[str, int]]:
    """Yield the role and the number of each instance that a step or the end mentions."""
    for row, *arguments in witness.steps:
        parameters = declaration.transition[str(row)].parameters
        for parameter, value in zip(parameters, arguments, strict=False):
            if isinstance(parameter, Index):
                yield parameter.role, int(value)
    for index in {} if witness.ends is None else free_indices(witness.ends):
        if index.name != index.role:
            yield index.role, int(index.name)
