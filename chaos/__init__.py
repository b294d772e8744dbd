"""Faults injected into real processes, and what is found afterwards."""
