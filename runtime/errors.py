"""Whose fault it is: the caller's, or ours."""


class CallerError(ValueError):
    """A call that cannot be carried out as asked; nothing has changed."""


class RequestRefused(CallerError):  # noqa: N818 - the name says what happened
    """A request that is not accepted: it could never run, or its id is in use."""


class StepOrderError(CallerError):
    """Outputs for a step that is not the one waiting for them, or for the wrong requests."""


class BrokenInvariant(RuntimeError):  # noqa: N818 - the name says what happened
    """The scheduler's own state contradicts its declaration; this is a fault in kvproof."""


class Frozen(BrokenInvariant):
    """Work is unfinished and nothing but an abort would let it go on; see `Scheduler.explain`."""
