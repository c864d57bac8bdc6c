"""The hardware a process runs on: which devices there are, and copies between host and device."""
