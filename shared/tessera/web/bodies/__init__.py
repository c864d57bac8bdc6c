"""Request bodies: how much memory they may hold together, and forms that wait on a disk. Torch-free."""
