"""The adapter for Redis and Valkey."""
