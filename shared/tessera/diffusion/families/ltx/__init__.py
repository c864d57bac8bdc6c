"""The family LTX-Video: its step loop and its fused block."""
