"""The family CogVideoX 1.0 and 1.5: its step loop and its fused block."""
