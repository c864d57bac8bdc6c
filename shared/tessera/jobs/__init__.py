"""Durable jobs, torch-free: Redis holds the truth, Celery only rings, files live in an artifact store."""
