"""The hardware that a process runs on: the devices that exist, and copies between host and device."""
