"""`tessera demo`: one request of every modality, and a page with the results. Torch-free."""
