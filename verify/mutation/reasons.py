"""Why faults of the scheduler that nothing notices are none, or are noticed elsewhere."""

from __future__ import annotations

from kvproof.verify.mutation.justified import Justification

REASONS = (
    Justification(
        "The victim is quiet, so its fence is open at once, and would be with a lower number too.",
        rows=("preempt", "preempt_at_will"),
        faults=(
            "with effect until[e] := (last_frame[victim] if last_frame[victim] <= returned[step]"
            " else issued[step] - [is_open[step]]) - 1 for (last_frame[victim] if"
            " last_frame[victim] <= returned[step] else issued[step] - [is_open[step]])",
        ),
    ),
    Justification(
        "With drafts a table may be longer by all of them; one slot less than that is no harm.",
        rows=("grow",),
        faults=(
            "with guard MAX_DRAFTS == 0 or computed[r] <= known[r]"
            " for MAX_DRAFTS == 0 or computed[r] < known[r]",
        ),
    ),
    Justification(
        "Which prefix a request begins with is not in the state; a shadow of the KV memory shows"
        " that it is given no other one's blocks (tests/verify/test_transfer_fuzz.py).",
        rows=("share",),
        faults=("with guard content[b] >= prefix for content[b] == prefix",),
    ),
    Justification(
        "A load that fails behind its last token has brought everything, and does what land does.",
        rows=("fail_load",),
        faults=("with guard valid <= remote[r] for valid < remote[r]",),
    ),
    Justification(
        "To load no token changes nothing.",
        rows=("load_now", "load_now_again"),
        faults=("with guard external >= 0 for external >= 1",),
    ),
    Justification(
        "Who does not run does not decode (waiting_starts_over, loaded_starts_over), so the row"
        " would change nothing.",
        rows=("note_prefill",),
        faults=(
            "from ABSENT too",
            "from WAITING too",
            "from PREEMPTED too",
            "from WAITING_FOR_REMOTE_KVS too",
            "from WAITING_FOR_GRAMMAR too",
            "from WAITING_FOR_STREAMING too",
        ),
    ),
    Justification(
        "Who waits for input or for its grammar has computed nothing and does not decode, so the"
        " row would change nothing.",
        rows=("cut",),
        faults=("from WAITING_FOR_GRAMMAR too", "from WAITING_FOR_STREAMING too"),
    ),
    Justification(
        "Beside `less`, `no greater` and `equal` are the same; sums of two kinds have no name.",
        rows=("await_load",),
        faults=(
            "with guard total(request x: [status[x] == RUNNING and (priority[x] < priority[first]"
            " or priority[x] <= priority[first] and (arrival[x] < arrival[first] or arrival[x] =="
            " arrival[first] and turn[x] < turn[first]))]) == 0 for total(request x: [status[x]"
            " == RUNNING and (priority[x] < priority[first] or priority[x] == priority[first] and"
            " (arrival[x] < arrival[first] or arrival[x] == arrival[first] and turn[x] <"
            " turn[first]))]) == 0",
            "with guard total(request x: [status[x] == RUNNING and (priority[x] < priority[first]"
            " or priority[x] == priority[first] and (arrival[x] < arrival[first] or arrival[x] <="
            " arrival[first] and turn[x] < turn[first]))]) == 0 for total(request x: [status[x]"
            " == RUNNING and (priority[x] < priority[first] or priority[x] == priority[first] and"
            " (arrival[x] < arrival[first] or arrival[x] == arrival[first] and turn[x] <"
            " turn[first]))]) == 0",
        ),
    ),
    Justification(
        "A sum of twos is 0 exactly if a sum of ones is; sums of two kinds have no common name.",
        rows=("await_load",),
        faults=(
            "with guard total(request x: (2 if status[x] == RUNNING and (priority[x] <"
            " priority[first] or priority[x] == priority[first] and (arrival[x] < arrival[first]"
            " or arrival[x] == arrival[first] and turn[x] < turn[first])) else 0)) == 0 for"
            " total(request x: [status[x] == RUNNING and (priority[x] < priority[first] or"
            " priority[x] == priority[first] and (arrival[x] < arrival[first] or arrival[x] =="
            " arrival[first] and turn[x] < turn[first]))]) == 0",
        ),
    ),
    Justification(
        "A sum of twos is 0 exactly if a sum of ones is; sums of two kinds have no common name.",
        rows=("process",),
        faults=(
            "with guard total(request x: (2 if status[x] == RUNNING and computed[x] >= known[x]"
            " and last_frame[x] <= processed[step] + 1 else 0)) == 0 for total(request x:"
            " [status[x] == RUNNING and computed[x] >= known[x]"
            " and last_frame[x] <= processed[step] + 1]) == 0",
        ),
    ),
)
