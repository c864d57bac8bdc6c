"""The family Wan 2.1 and 2.2: its step loop and its fused block."""
