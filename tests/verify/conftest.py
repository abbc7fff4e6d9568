"""A declaration small enough to see at once what each proof about it must say."""

import pytest

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Choice, Constant, Number, count_if, total
from kvproof.spec.rows import Enumeration, Invariant, Measure, Progress, Role, Transition, Variable

SIZE = Constant("SIZE", "units that there are")
State = Enumeration(
    "State", "what a borrower does", (("IDLE", "holds none"), ("BUSY", "holds one"))
)
borrower = Role("borrower", "one who takes a unit", plural="borrowers")
till = Role("till", "where the units are", single=True)
b, x = borrower.index("b"), borrower.index("x")

state = Variable[Choice]("state", (borrower,), "what the borrower does", enumeration=State)
held = Variable[Number]("held", (borrower,), "units it holds", minimum=0)
free = Variable[Number]("free", (till,), "units in the till", initial=SIZE, minimum=0)

TAKE = Transition(
    "take",
    "An idle borrower takes a unit.",
    "none",
    parameters=(b,),
    subject=b,
    source=(State["IDLE"],),
    target=State["BUSY"],
    guard=(free[till] >= 1,),
    effect=(held[b].becomes(held[b] + 1), free[till].becomes(free[till] - 1)),
)
GIVE = Transition(
    "give",
    "A busy borrower gives its unit back.",
    "none",
    parameters=(b,),
    subject=b,
    source=(State["BUSY"],),
    target=State["IDLE"],
    effect=(held[b].becomes(held[b] - 1), free[till].becomes(free[till] + 1)),
    undoes="take",
)
CONSERVED = Invariant(
    "conserved",
    "Every unit is in the till or held.",
    free[till] + total(x, held[x]) == SIZE,
    property="S1",
)
BUSY_HOLDS = Invariant(
    "busy_holds",
    "Exactly the busy hold a unit, and one only.",
    held[b] == count_if(state[b] == State["BUSY"]),
    property="S2",
)
LENDING = Declaration(
    name="lending",
    constants=(SIZE,),
    roles=(borrower, till),
    enumeration=State,
    state=state,
    variables=(state, held, free),
    transitions=(TAKE, GIVE),
    invariants=(CONSERVED, BUSY_HOLDS),
    measures=(
        Measure("units_in", "Units in the till.", free[till], ("take",), ("give",)),
        Measure("units_out", "Units out of it.", total(x, held[x]), ("give",), ("take",)),
    ),
    progress=(
        Progress(
            "someone_can_act",
            "Where there is a borrower, some borrower can take or give.",
            (b,),
            held[b] >= 0,
            rows=("take", "give"),
        ),
    ),
    checked=False,
)


@pytest.fixture
def lending() -> Declaration:
    """Return units that are lent and given back, one to a borrower, for any number of both."""
    return LENDING
