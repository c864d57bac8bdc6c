"""Request bodies: how slowly they may come, how much memory they may hold, forms that wait on a disk. Torch-free."""
