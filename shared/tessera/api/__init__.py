"""HTTP routes of resources that both the gateway and a service mount. Torch-free."""
