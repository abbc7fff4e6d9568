"""A formally checked scheduler core for LLM inference engines, with code generation."""

__version__ = "0.1.0"
