"""Where pages live when they leave the device: one file per tier."""
