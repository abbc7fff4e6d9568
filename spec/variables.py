"""Every variable of the state, by the machine it belongs to."""

from kvproof.spec.expression import Choice, Formula, Number
from kvproof.spec.roles import TOTAL_BLOCKS, block, fence, pool, request, step
from kvproof.spec.rows import Variable
from kvproof.spec.statuses import Status

# One row of the request table.

status = Variable[Choice](
    "status", (request,), "where the request is in its life", enumeration=Status
)
known = Variable[Number]("known", (request,), "tokens known: the prompt and every accepted sample")
limit = Variable[Number]("limit", (request,), "known tokens at which the request has its length")
computed = Variable[Number](
    "computed",
    (request,),
    "tokens whose KV a dispatched frame has written or will write",
    minimum=0,
)
scheduled = Variable[Number](
    "scheduled", (request,), "tokens this request gets in the open step", minimum=0
)
owed = Variable[Number](
    "owed", (request,), "sampled tokens that dispatched frames still owe", minimum=0
)
stopped = Variable[Formula](
    "stopped", (request,), "the last accepted sample ends the request", flag=True
)
last_frame = Variable[Number](
    "last_frame", (request,), "number of the last dispatched frame that touches its table"
)
preemptions = Variable[Number](
    "preemptions", (request,), "times the request was preempted", minimum=0
)
held = Variable[Number]("held", (request,), "blocks in its block table", minimum=0)
block_table = Variable[Number](
    "block_table",
    (request, block),
    "its blocks, in the order of the tokens they hold",
    minimum=0,
    length=held,
)

# One block.

references = Variable[Number](
    "references", (block,), "tables and fences that name the block", minimum=0
)
queued = Variable[Formula](
    "queued", (block,), "the block is in the free queue", initial=1, flag=True
)
touched = Variable[Number](
    "touched",
    (request, block),
    "last dispatched frame in which this request's row read or wrote the block",
    ghost=True,
)

# One fence: a table on its way back to the pool.

fenced = Variable[Number]("fenced", (fence,), "blocks the fence still holds back", minimum=0)
until = Variable[Number]("until", (fence,), "last dispatched frame that may touch these blocks")
fence_table = Variable[Number](
    "fence_table", (fence, block), "the blocks held back, in table order", minimum=0, length=fenced
)

# The pool.

free = Variable[Number](
    "free", (pool,), "blocks in the free queue", initial=TOTAL_BLOCKS, minimum=0
)
referenced = Variable[Number](
    "referenced", (pool,), "blocks that some table or fence names", minimum=0
)
running = Variable[Number]("running", (pool,), "requests that are RUNNING", minimum=0)
waiting = Variable[Number]("waiting", (pool,), "requests that are WAITING or PREEMPTED", minimum=0)

# The step.

is_open = Variable[Formula](
    "is_open", (step,), "a pass is being scheduled and not yet dispatched", flag=True
)
issued = Variable[Number]("issued", (step,), "frames opened so far")
processed = Variable[Number]("processed", (step,), "frames whose outputs are accounted for")
budget_left = Variable[Number](
    "budget_left", (step,), "tokens the open step may still schedule", minimum=0
)
preempted = Variable[Number](
    "preempted", (step,), "preemptions made since the step was opened", minimum=0
)
needed = Variable[Number](
    "needed",
    (step,),
    "preemptions of the open step for a running request that all free blocks could not serve",
    ghost=True,
)

VARIABLES = (
    status,
    known,
    limit,
    computed,
    scheduled,
    owed,
    stopped,
    last_frame,
    preemptions,
    held,
    block_table,
    references,
    queued,
    touched,
    fenced,
    until,
    fence_table,
    free,
    referenced,
    running,
    waiting,
    is_open,
    issued,
    processed,
    budget_left,
    preempted,
    needed,
)
