"""A worker process: claims jobs, renews their leases, runs them, reports their end."""
