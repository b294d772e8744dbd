"""Fair dispatch of background jobs in multi-tenant services."""
