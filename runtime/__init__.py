"""Who decides: the scheduler that runs on the generated core, and the memory it hands out."""

from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.errors import (
    BrokenInvariant,
    CallerError,
    Frozen,
    RequestRefused,
    StepOrderError,
)
from kvproof.runtime.explanation import Explanation
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.profile import Profile
from kvproof.runtime.request import EncoderItem, FinishReason, Request, RequestOutput
from kvproof.runtime.running_view import RunningView
from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.statistics import Statistics
from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_tensors import StepTensors
from kvproof.runtime.waiting_request import WaitingRequest

__all__ = [
    "BrokenInvariant",
    "CallerError",
    "EncoderItem",
    "Explanation",
    "FinishReason",
    "Frozen",
    "KVPool",
    "Profile",
    "Request",
    "RequestOutput",
    "RequestRefused",
    "RunningView",
    "Scheduler",
    "SchedulerConfig",
    "Statistics",
    "StepOrderError",
    "StepOutput",
    "StepTensors",
    "WaitingRequest",
]
