"""The public reports that rows of the declaration cite: what went wrong, in one sentence each.

Which rows answer a report is not said here: the rows say it, in their `rule`.
"""

from __future__ import annotations

import re

from kvproof.spec.rules import Rule

TRACKERS = {
    "ascend": "vllm-project/vllm-ascend",
    "lmc": "LMCache/LMCache",
    "sgl": "sgl-project/sglang",
    "sgl-jax": "sgl-project/sglang-jax",
    "trt": "NVIDIA/TensorRT-LLM",
    "vllm": "vllm-project/vllm",
}

_REPORT = re.compile(r"[A-Za-z][\w./-]*#[0-9]+")


def cited(rule: str) -> tuple[str, ...]:
    """Return the reports that a row's `rule` names, in the order in which it does."""
    return tuple(dict.fromkeys(_REPORT.findall(rule)))


REPORTS = (
    Rule("vllm#6586", "A sample came for a request that an abort had freed, and the loop died."),
    Rule(
        "vllm#11565",
        "Cached blocks that idled in the free queue counted twice: as hits and as free.",
    ),
    Rule("vllm#15326", "A new request took the id of an aborted one that had not fully left."),
    Rule(
        "vllm#18115",
        "The same requests were preempted and admitted again and again, and hardly got on.",
    ),
    Rule("vllm#18411", "A request came back to the queue with blocks and was given others."),
    Rule("vllm#21809", "Requests were preempted, admitted in part and preempted again, for ever."),
    Rule(
        "vllm#23713",
        "A victim that the step had scheduled already stayed in it, so more were scheduled than"
        " ran.",
    ),
    Rule("vllm#24228", "The free counter was lowered before the check that then refused."),
    Rule(
        "vllm#25538",
        "Admission asked for room for the first chunk only, and the same requests were admitted"
        " and preempted for ever.",
    ),
    Rule("vllm#28558", "Part of what a preempted request had in the open step stayed behind."),
    Rule(
        "vllm#29387",
        "A block that the same step was still to compute was taken for a finished hit.",
    ),
    Rule(
        "vllm#30659",
        "Two loaded requests held half the pool each and waited for the other's half.",
    ),
    Rule("vllm#30916", "Draft tokens from before a preemption lived on into the next attempt."),
    Rule(
        "vllm#31857",
        "Requests that were refused their blocks kept encoder entries until the cache was full of"
        " them.",
    ),
    Rule("vllm#32255", "An abort freed blocks that somebody was still writing."),
    Rule(
        "vllm#37307",
        "The mending of vllm#25538: all known tokens have to fit, and a watermark stays free.",
    ),
    Rule(
        "vllm#38551",
        "An encoder entry was freed by a count that ran ahead, and then asked for again.",
    ),
    Rule(
        "vllm#39734",
        "A prompt that is larger than the pool waited at the head of the queue and blocked it.",
    ),
    Rule("vllm#42571", "A table named a block twice, and both entries gave a reference back."),
    Rule(
        "vllm#41951",
        "A preempted request was overtaken without end by later ones that were as urgent.",
    ),
    Rule(
        "vllm#43433",
        "Blocks whose release was delayed stayed, because nobody counted the delay as work.",
    ),
    Rule(
        "vllm#43569",
        "A hash is published when its block is allocated, so a victim of the same step can come"
        " back to blocks that nobody wrote.",
    ),
    Rule(
        "vllm#44558",
        "A throttle on prefills must let go where a backlog is left, or a full rank falls behind.",
    ),
    Rule("vllm#44773", "Operators ask how often each single request is preempted."),
    Rule(
        "vllm#45357",
        "Blocks were handed out again while a dispatched step was still to write them; the"
        " mending numbers the steps and waits.",
    ),
    Rule(
        "vllm#45388",
        "Loads were admitted by what they bring, and the rest of them did not fit together.",
    ),
    Rule(
        "vllm#45406",
        "A load had ended, and nobody looked, because the head of the queue did not fit.",
    ),
    Rule(
        "vllm#48245",
        "A preemption lost count of the samples that steps in flight would still bring.",
    ),
    Rule(
        "vllm#48433",
        "What was set aside for a load was given to a local request.",
    ),
    Rule(
        "vllm#49674",
        "Preempting freed nothing at once, so one request in need preempted all that ran.",
    ),
    Rule(
        "vllm#50719",
        "A failed load was written to the log and reported to nobody.",
    ),
    Rule(
        "vllm#50754",
        "A transfer that could not start sent no message, and its receiver waited for ever.",
    ),
    Rule("vllm#52693", "One session stood in the running list and in the queue, and ran twice."),
    Rule("vllm#52969", "A waiting request was aborted while it was being admitted."),
    Rule("vllm#53130", "Parked requests filled the run slots, and nobody was admitted any more."),
    Rule(
        "vllm#53250",
        "A transfer that works once was promised again after a preemption.",
    ),
    Rule("vllm#53321", "A parked session whose client had gone had no way out."),
    Rule(
        "vllm#54284",
        "An entry could be evicted while its request was still reading the same item a second"
        " time.",
    ),
    Rule(
        "vllm#56640",
        "A load of no blocks never ended, because nobody had recorded it.",
    ),
    Rule("vllm#54644", "Users ask to choose themselves who is preempted."),
    Rule(
        "vllm#57104",
        "A loaded request lacked the block for look-ahead that nobody had set aside.",
    ),
    Rule(
        "vllm#57841",
        "A request without an answer yet stood before the one that held the blocks it needs.",
    ),
    Rule(
        "vllm-project/vllm-omni#6053",
        "A preemption set the status and forgot all else that belongs to it.",
    ),
    Rule("sgl#35270", "Shared pages counted twice, so that more was there than there is."),
    Rule("sgl-jax#982", "Two counts of one request's slots differed, and a slot leaked."),
    Rule("sgl-jax#1523", "An aborted request was taken for a preempted one and ran again."),
    Rule(
        "trt#12542",
        "A block was taken for something else before it had been sent.",
    ),
    Rule("trt#13318", "A step with chunked prefills held more tokens than its budget."),
    Rule("ascend#14283", "A count fell below zero, and a negative number of blocks was asked for."),
    Rule("lmc#1969", "A resumed request did not look for what it had saved before."),
    Rule("lmc#2327", "Hits covered the whole prompt, and no token was left to compute."),
    Rule("ai-dynamo/dynamo#13398", "A block that was listed twice joined the free queue twice."),
    Rule(
        "ovg-project/kvcached#362",
        "A block went to another request and was still found under its old hash.",
    ),
)
