"""Measurements. Run as modules, such as ``python -m bench.core``."""
