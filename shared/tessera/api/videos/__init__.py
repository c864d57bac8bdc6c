"""`/v1/videos`: video generation as jobs."""
