"""The scheduler core: pure, without I/O or clock."""
