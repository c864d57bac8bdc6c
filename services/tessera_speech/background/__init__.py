"""Long recordings as jobs: what a job worker does, and what it keeps between attempts."""
