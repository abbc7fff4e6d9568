"""Who decides: the scheduler that runs on the generated core, and the memory it hands out."""

from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.errors import (
    BrokenInvariant,
    CallerError,
    RequestRefused,
    StepOrderError,
)
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.request import FinishReason, Request, RequestOutput
from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.statistics import Statistics
from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_tensors import StepTensors

__all__ = [
    "BrokenInvariant",
    "CallerError",
    "FinishReason",
    "KVPool",
    "Request",
    "RequestOutput",
    "RequestRefused",
    "Scheduler",
    "SchedulerConfig",
    "Statistics",
    "StepOrderError",
    "StepOutput",
    "StepTensors",
]
