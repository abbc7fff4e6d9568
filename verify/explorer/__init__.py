"""Exhaustive exploration of the real runtime within small bounds."""

from kvproof.verify.explorer.explore import explore
from kvproof.verify.explorer.findings import (
    Check,
    Exploration,
    Explored,
    Finding,
    Kind,
    Transition,
)
from kvproof.verify.explorer.scope import Scope
from kvproof.verify.explorer.shapes import WHOLE, Shape, default_shapes

__all__ = [
    "WHOLE",
    "Check",
    "Exploration",
    "Explored",
    "Finding",
    "Kind",
    "Scope",
    "Shape",
    "Transition",
    "default_shapes",
    "explore",
]
