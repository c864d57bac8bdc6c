"""The family HunyuanVideo 1.5: its step loop; its blocks are Diffusers' own."""
