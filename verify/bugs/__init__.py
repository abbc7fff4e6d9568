"""Faults of public reports, planted one at a time, and which of the usual checks catches each."""
