"""The scheduler: every machine of the declaration composed into one."""

from kvproof.spec import (
    block_invariants,
    block_transitions,
    encoder_invariants,
    encoder_transitions,
    loaded_invariants,
    miscount_transitions,
    order_invariants,
    parking_transitions,
    request_invariants,
    request_transitions,
    step_invariants,
    step_transitions,
    transfer_invariants,
    transfer_transitions,
)
from kvproof.spec.declaration import Declaration
from kvproof.spec.edge_witnesses import EDGE_WITNESSES
from kvproof.spec.progress import MEASURES, PROGRESS
from kvproof.spec.reference_edge_witnesses import REFERENCE_EDGE_WITNESSES
from kvproof.spec.roles import CONSTANTS, ROLES
from kvproof.spec.statuses import Status
from kvproof.spec.variables import VARIABLES, status
from kvproof.spec.witnesses import WITNESSES

SCHEDULER = Declaration(
    name="scheduler",
    constants=CONSTANTS,
    roles=ROLES,
    enumeration=Status,
    state=status,
    variables=VARIABLES,
    transitions=(
        *request_transitions.TRANSITIONS,
        *block_transitions.TRANSITIONS,
        *parking_transitions.TRANSITIONS,
        *transfer_transitions.TRANSITIONS,
        *encoder_transitions.TRANSITIONS,
        *step_transitions.TRANSITIONS,
        *miscount_transitions.TRANSITIONS,
    ),
    invariants=(
        *request_invariants.INVARIANTS,
        *block_invariants.INVARIANTS,
        *transfer_invariants.INVARIANTS,
        *loaded_invariants.INVARIANTS,
        *order_invariants.INVARIANTS,
        *encoder_invariants.INVARIANTS,
        *step_invariants.INVARIANTS,
    ),
    measures=MEASURES,
    progress=PROGRESS,
    witnesses=(*WITNESSES, *EDGE_WITNESSES, *REFERENCE_EDGE_WITNESSES),
)
