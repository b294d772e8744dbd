"""Adapters of drr's store port, found by URL scheme."""
