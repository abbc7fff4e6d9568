"""The catalogue of what a scheduler must guarantee; invariants, measures and progress refer to it.

A property that no row states says which check shows it, or which later part brings it.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Property:
    """One guarantee in one sentence; `elsewhere` says what shows it where no row states it."""

    name: str
    sentence: str
    elsewhere: str = ""


PROPERTIES = (
    Property("S1", "Every block is free or referenced; none is lost and none is invented."),
    Property("S2", "A block has exactly as many references as tables and fences name it."),
    Property("S3", "A block is in the free queue exactly when nothing names it."),
    Property(
        "S4",
        "A block is reused only after every step and every transfer that can touch it is over.",
    ),
    Property("S5", "The end signal of a transfer acts once, however often it comes."),
    Property("S6", "Every way out of running releases what was held, exactly once."),
    Property(
        "S7",
        "A refused call leaves everything as it was.",
        "proved of each row's function by the translation check, tested of each call",
    ),
    Property("S8", "Admission counts only blocks that can really be had."),
    Property(
        "S9",
        "A published block holds content that a dispatched step has written or writes, and nobody"
        " writes it again.",
    ),
    Property(
        "S10", "A waiting request holds no block; the table of a running one covers its tokens."
    ),
    Property("N1", "Token counts are never negative and stay within what is known and allowed."),
    Property("N2", "Samples owed are exactly those that frames in flight will bring."),
    Property("N3", "A request taken out of the open step leaves no trace in it."),
    Property("N4", "Slots of the encoder cache are conserved, and its budget is kept."),
    Property("N5", "A step never schedules more tokens than its budget."),
    Property("N6", "What is released is decided by frames that have come back, in their order."),
    Property(
        "L1",
        "A request that can be served is counted as running or as waiting, any other as neither.",
    ),
    Property("L2", "A request moves only along the declared edges."),
    Property("L3", "Nothing that comes after the end of a request, such as an abort, undoes it."),
    Property("L4", "A request ends once; what would end it again is refused."),
    Property("L5", "A row is taken again only after nothing of its last request is left."),
    Property("L6", "What belongs to one attempt is reset by preemption."),
    Property("L7", "A request finishes only on output of an attempt whose table it still holds."),
    Property("V1", "Unfinished work can always go on, and each action uses something up."),
    Property("V2", "A request that could not fit an empty pool is refused at its arrival."),
    Property("V3", "A request whose load has ended is admitted, whatever stands before it."),
    Property("V4", "No holder of blocks waits behind a request that needs them."),
    Property("V5", "All that holds loaded blocks fits into the pool together."),
    Property("V6", "A preemption is made only if it raises the blocks that can be had now."),
    Property("V7", "Every wait has an exit."),
    Property("V8", "While a release or a frame is pending, something can always be done for it."),
    Property("V9", "A parked request occupies no run slot, no block and no encoder entry."),
    Property(
        "V10",
        "Nobody is overtaken without end: who runs longer goes first, and prefills are deferred"
        " only while decodes run and no backlog is left.",
    ),
    Property(
        "V11", "All ranks issue the same collectives in each step.", "comes with data parallelism"
    ),
)

BY_NAME = {item.name: item for item in PROPERTIES}
