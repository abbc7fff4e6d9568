"""The rows of the encoder cache: an entry is computed, shared, released and evicted."""

from kvproof.spec.expression import Assignment, NumberParameter, all_of, any_of, choose
from kvproof.spec.roles import ENCODER_BUDGET, item, pool, request, step
from kvproof.spec.rows import Transition
from kvproof.spec.statuses import RUNNING
from kvproof.spec.variables import (
    computed,
    decoding,
    encoder_budget_left,
    encoder_free,
    encoder_idle,
    encoder_used,
    is_open,
    item_table,
    items_held,
    known,
    last_frame,
    passed,
    returned,
    size,
    users,
)

r = request.index("r")
i = item.index("i")
embeddings = NumberParameter("embeddings", "embeddings of the entry")
end = NumberParameter("end", "tokens of the request up to the end of the item")


def _leave() -> tuple[Assignment, ...]:
    """Return what it means that a request uses an entry no more; the last user leaves it idle."""
    return (
        encoder_used[pool].becomes(encoder_used[pool] - choose(users[i] == 1, size[i], 0)),
        encoder_idle[pool].becomes(encoder_idle[pool] + choose(users[i] == 1, size[i], 0)),
        users[i].becomes(users[i] - 1),
        item_table[r, i].becomes(item_table[r, i] - 1),
        items_held[r].becomes(items_held[r] - 1),
    )


ENCODE = Transition(
    name="encode",
    doc="The open step computes a new entry for a running request, within its encoder budget.",
    rule="vLLM EncoderCacheManager.allocate; Scheduler._try_schedule_encoder_inputs",
    parameters=(r, i, embeddings),
    subject=r,
    source=(RUNNING,),
    guard=(
        is_open[step],
        size[i] == 0,
        embeddings >= 1,
        embeddings <= encoder_free[pool],
        embeddings <= encoder_budget_left[step],
    ),
    effect=(
        size[i].becomes(embeddings),
        users[i].becomes(users[i] + 1),
        item_table[r, i].becomes(item_table[r, i] + 1),
        items_held[r].becomes(items_held[r] + 1),
        encoder_free[pool].becomes(encoder_free[pool] - embeddings),
        encoder_used[pool].becomes(encoder_used[pool] + embeddings),
        encoder_budget_left[step].becomes(encoder_budget_left[step] - embeddings),
    ),
)

UNENCODE = Transition(
    name="unencode",
    doc="An entry that the open step was to compute is taken back, as if it had never been.",
    rule="vLLM Scheduler.schedule, preemption of a scheduled victim; vllm#28558",
    parameters=(r, i),
    guard=(
        is_open[step],
        item_table[r, i] >= 1,
        users[i] == 1,
        encoder_budget_left[step] + size[i] <= ENCODER_BUDGET,
    ),
    effect=(
        encoder_free[pool].becomes(encoder_free[pool] + size[i]),
        encoder_used[pool].becomes(encoder_used[pool] - size[i]),
        encoder_budget_left[step].becomes(encoder_budget_left[step] + size[i]),
        size[i].becomes(0),
        users[i].becomes(users[i] - 1),
        item_table[r, i].becomes(item_table[r, i] - 1),
        items_held[r].becomes(items_held[r] - 1),
    ),
    undoes="encode",
)

REUSE = Transition(
    name="reuse",
    doc="A running request takes part in an entry that is there already.",
    rule="vLLM EncoderCacheManager.check_and_update_cache",
    parameters=(r, i),
    subject=r,
    source=(RUNNING,),
    guard=(size[i] >= 1, item_table[r, i] == 0),
    effect=(
        encoder_idle[pool].becomes(encoder_idle[pool] - choose(users[i] == 0, size[i], 0)),
        encoder_used[pool].becomes(encoder_used[pool] + choose(users[i] == 0, size[i], 0)),
        users[i].becomes(users[i] + 1),
        item_table[r, i].becomes(item_table[r, i] + 1),
        items_held[r].becomes(items_held[r] + 1),
    ),
)

RELEASE = Transition(
    name="release",
    doc="A request past whose item a frame that has come back has computed uses its entry no more.",
    rule="vLLM Scheduler._free_encoder_inputs; vllm#38551; vllm#54284",
    parameters=(r, i, end),
    guard=(
        item_table[r, i] >= 1,
        end <= known[r],
        any_of(
            all_of(end <= computed[r], last_frame[r] <= returned[step]),
            all_of(decoding[r], end < known[r]),
        ),
    ),
    effect=(*_leave(), passed[r].becomes(choose(end > passed[r], end, passed[r]))),
)

LET_GO = Transition(
    name="let_go",
    doc="A request that is about to be preempted or to end uses an entry no more.",
    rule="vLLM EncoderCacheManager.free",
    parameters=(r, i),
    guard=(item_table[r, i] >= 1,),
    effect=_leave(),
)

EVICT = Transition(
    name="evict",
    doc="An entry that nobody uses gives its slots back.",
    rule="vLLM EncoderCacheManager.can_allocate",
    parameters=(i,),
    guard=(size[i] >= 1, users[i] == 0),
    effect=(
        encoder_idle[pool].becomes(encoder_idle[pool] - size[i]),
        encoder_free[pool].becomes(encoder_free[pool] + size[i]),
        size[i].becomes(0),
    ),
)

TRANSITIONS = (ENCODE, UNENCODE, REUSE, RELEASE, LET_GO, EVICT)
