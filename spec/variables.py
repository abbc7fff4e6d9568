"""Every variable of the state, by the machine it belongs to."""

from kvproof.spec.expression import Choice, Formula, Number
from kvproof.spec.roles import (
    ENCODER_SLOTS,
    TOTAL_BLOCKS,
    block,
    fence,
    item,
    pool,
    request,
    step,
)
from kvproof.spec.rows import Variable
from kvproof.spec.statuses import Status

# One row of the request table.

status = Variable[Choice](
    "status", (request,), "where the request is in its life", enumeration=Status
)
known = Variable[Number]("known", (request,), "tokens known: the prompt and every accepted sample")
limit = Variable[Number]("limit", (request,), "known tokens at which the request has its length")
ceiling = Variable[Number]("ceiling", (request,), "tokens that may be computed at most")
drafts = Variable[Number](
    "drafts", (request,), "draft tokens that follow the known ones", minimum=0
)
decoding = Variable[Formula](
    "decoding", (request,), "a sample was accepted since the request was last admitted", flag=True
)
computed = Variable[Number](
    "computed",
    (request,),
    "tokens whose KV a dispatched frame has written or will write",
    minimum=0,
)
scheduled = Variable[Number](
    "scheduled", (request,), "tokens this request gets in the open step", minimum=0
)
stale = Variable[Number](
    "stale",
    (request,),
    "last frame whose sample is dropped, because an older attempt asked for it",
    minimum=0,
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
place = Variable[Number](
    "place",
    (request, block),
    "where in the request's table the block was put",
    ghost=True,
)
block_table = Variable[Number](
    "block_table",
    (request, block),
    "its blocks, in the order of the tokens they hold",
    minimum=0,
    length=held,
    place=place,
)

loading = Variable[Formula](
    "loading", (request,), "a transfer fills blocks of its table, and has not ended", flag=True
)
remote = Variable[Number](
    "remote",
    (request,),
    "tokens behind the computed ones that a transfer is to bring",
    minimum=0,
)
landed = Variable[Formula](
    "landed", (request,), "it waits to be admitted and holds what a load has brought", flag=True
)
claimed = Variable[Number](
    "claimed",
    (request,),
    "blocks that a request which is loaded, or waits loaded, needs for all of its known tokens",
    minimum=0,
)
load_failed = Variable[Formula](
    "load_failed",
    (request,),
    "its last load brought nothing of use, so that this attempt computes everything",
    flag=True,
)

priority = Variable[Number](
    "priority", (request,), "the least is served first, where requests differ in priority"
)
arrival = Variable[Number](
    "arrival", (request,), "among equals in priority, the least is served first"
)
turn = Variable[Number](
    "turn", (request,), "number of its last admission; among equals, the least is served first"
)

items_held = Variable[Number](
    "items_held", (request,), "entries of the encoder cache that the request uses", minimum=0
)
item_table = Variable[Number](
    "item_table",
    (request, item),
    "those entries, in the order in which they were taken",
    minimum=0,
    length=items_held,
)

passed = Variable[Number](
    "passed",
    (request,),
    "tokens up to the end of the last item whose entry this attempt has released",
    minimum=0,
    ghost=True,
)

# One block.

references = Variable[Number](
    "references", (block,), "tables and fences that name the block", minimum=0
)
queued = Variable[Formula](
    "queued", (block,), "the block is in the free queue", initial=1, flag=True
)
content = Variable[Number](
    "content",
    (block,),
    "number of the prefix under which the block is published, 0 for none",
    minimum=0,
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
pinned = Variable[Number](
    "pinned", (fence,), "transfers that may still touch these blocks", minimum=0
)
fence_table = Variable[Number](
    "fence_table", (fence, block), "the blocks held back, in table order", minimum=0, length=fenced
)

# One entry of the encoder cache.

size = Variable[Number]("size", (item,), "embeddings of the entry, 0 if it is vacant", minimum=0)
users = Variable[Number]("users", (item,), "requests that use the entry", minimum=0)

# The pool.

free = Variable[Number](
    "free", (pool,), "blocks in the free queue", initial=TOTAL_BLOCKS, minimum=0
)
referenced = Variable[Number](
    "referenced", (pool,), "blocks that some table or fence names", minimum=0
)
running = Variable[Number]("running", (pool,), "requests that are RUNNING", minimum=0)
waiting = Variable[Number]("waiting", (pool,), "requests that are WAITING or PREEMPTED", minimum=0)

loaded = Variable[Number](
    "loaded", (pool,), "requests that wait to be admitted with what a load has brought", minimum=0
)
claims = Variable[Number](
    "claims", (pool,), "blocks that all requests which are loaded, or wait loaded, need", minimum=0
)
undecided = Variable[Number](
    "undecided",
    (pool,),
    "waiting requests of which it is not known yet what can be loaded",
    minimum=0,
)

encoder_free = Variable[Number](
    "encoder_free",
    (pool,),
    "slots of the encoder cache without an entry",
    initial=ENCODER_SLOTS,
    minimum=0,
)
encoder_used = Variable[Number](
    "encoder_used", (pool,), "slots of entries that some request uses", minimum=0
)
encoder_idle = Variable[Number](
    "encoder_idle", (pool,), "slots of entries that nobody uses and that can be evicted", minimum=0
)

# The step.

is_open = Variable[Formula](
    "is_open", (step,), "a pass is being scheduled and not yet dispatched", flag=True
)
is_deferring = Variable[Formula](
    "is_deferring", (step,), "the open step leaves prefills to a later one", flag=True
)
capacity_bound = Variable[Formula](
    "capacity_bound",
    (step,),
    "the last step that neither deferred nor preempted left a backlog",
    flag=True,
)
credit = Variable[Number](
    "credit",
    (step,),
    "hits in use by others that admissions of the open step count on and have not shared yet",
    minimum=0,
)
issued = Variable[Number]("issued", (step,), "frames opened so far")
returned = Variable[Number](
    "returned", (step,), "frames whose outputs have come back: they touch no block any more"
)
spoiled = Variable[Number](
    "spoiled", (step,), "last frame that may bring a sample to be dropped", minimum=0
)
processed = Variable[Number]("processed", (step,), "frames whose outputs are accounted for")
budget_left = Variable[Number](
    "budget_left", (step,), "tokens the open step may still schedule", minimum=0
)
encoder_budget_left = Variable[Number](
    "encoder_budget_left", (step,), "embeddings the open step may still compute", minimum=0
)
preempted = Variable[Number](
    "preempted", (step,), "preemptions made since the step was opened", minimum=0
)
admissions = Variable[Number]("admissions", (step,), "admissions made so far", minimum=0)
in_turn = Variable[Number](
    "in_turn",
    (step,),
    "preemptions of the open step whose victim is not served before the needy request",
    ghost=True,
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
    ceiling,
    drafts,
    decoding,
    computed,
    scheduled,
    stale,
    stopped,
    last_frame,
    preemptions,
    held,
    place,
    block_table,
    loading,
    remote,
    landed,
    claimed,
    load_failed,
    priority,
    arrival,
    turn,
    items_held,
    item_table,
    passed,
    references,
    queued,
    content,
    touched,
    fenced,
    until,
    pinned,
    fence_table,
    size,
    users,
    free,
    referenced,
    running,
    waiting,
    loaded,
    claims,
    undecided,
    encoder_free,
    encoder_used,
    encoder_idle,
    is_open,
    is_deferring,
    capacity_bound,
    credit,
    issued,
    returned,
    spoiled,
    processed,
    budget_left,
    encoder_budget_left,
    preempted,
    admissions,
    in_turn,
    needed,
)
