"""The rows that park a request until something outside the scheduler happens, and end the wait.

A parked request holds no block, no entry and no run slot (vllm#53130, vllm#53321).
"""

from kvproof.spec.expression import NumberParameter, any_of, larger, no
from kvproof.spec.request_transitions import forget_attempt, move_table_to_fence, vacant
from kvproof.spec.roles import BLOCK_SIZE, LOOKAHEAD, TOTAL_BLOCKS, fence, pool, request, step
from kvproof.spec.rows import Transition
from kvproof.spec.statuses import RUNNING, WAITING, WAITING_FOR_GRAMMAR, WAITING_FOR_STREAMING
from kvproof.spec.variables import (
    ceiling,
    items_held,
    known,
    landed,
    last_frame,
    limit,
    load_failed,
    running,
    scheduled,
    spoiled,
    stale,
    stopped,
    waiting,
)

r = request.index("r")
e = fence.index("e")
tokens = NumberParameter("tokens", "tokens of the next input")
max_tokens = NumberParameter("max_tokens", "tokens to sample at most")
most = NumberParameter("most", "tokens that may be computed at most")

AWAIT_GRAMMAR = Transition(
    name="await_grammar",
    doc="A request whose output follows a grammar is parked while that is compiled.",
    rule="vLLM Scheduler._is_blocked_waiting_status",
    parameters=(r,),
    subject=r,
    source=(WAITING,),
    target=WAITING_FOR_GRAMMAR,
    guard=(no(landed[r]),),
    effect=(waiting[pool].becomes(waiting[pool] - 1),),
    environment=True,
)

GRAMMAR_READY = Transition(
    name="grammar_ready",
    doc="The grammar is compiled; the request waits for admission.",
    rule="vLLM Scheduler._try_promote_blocked_waiting_request",
    parameters=(r,),
    subject=r,
    source=(WAITING_FOR_GRAMMAR,),
    target=WAITING,
    effect=(waiting[pool].becomes(waiting[pool] + 1),),
    environment=True,
)

PARK_SESSION = Transition(
    name="park_session",
    doc="A session whose turn is over gives up its table and waits for its caller.",
    rule="vLLM Scheduler._handle_stopped_request; vllm#53130",
    parameters=(r, e),
    subject=r,
    source=(RUNNING,),
    target=WAITING_FOR_STREAMING,
    guard=(
        any_of(stopped[r], known[r] == limit[r]),
        scheduled[r] == 0,
        items_held[r] == 0,
        *vacant(e),
    ),
    effect=(
        *move_table_to_fence(r),
        *forget_attempt(r),
        load_failed[r].becomes(value=False),
        stopped[r].becomes(value=False),
        stale[r].becomes(last_frame[r]),
        spoiled[step].becomes(larger(spoiled[step], last_frame[r])),
        running[pool].becomes(running[pool] - 1),
    ),
)

CONTINUE_SESSION = Transition(
    name="continue_session",
    doc="The caller sends the next input of a session, which waits for admission again.",
    rule="vLLM Scheduler._update_request_as_session; vllm#53321",
    parameters=(r, tokens, max_tokens, most),
    subject=r,
    source=(WAITING_FOR_STREAMING,),
    target=WAITING,
    guard=(
        tokens >= 0,
        max_tokens >= 1,
        known[r] + tokens + max_tokens - 1 <= most,
        most + LOOKAHEAD <= TOTAL_BLOCKS * BLOCK_SIZE,
    ),
    effect=(
        known[r].becomes(known[r] + tokens),
        limit[r].becomes(known[r] + tokens + max_tokens),
        ceiling[r].becomes(most),
        waiting[pool].becomes(waiting[pool] + 1),
    ),
    environment=True,
)

TRANSITIONS = (AWAIT_GRAMMAR, GRAMMAR_READY, PARK_SESSION, CONTINUE_SESSION)
