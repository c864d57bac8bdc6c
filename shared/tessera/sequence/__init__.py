"""The sequence engine: requests that generate tokens, in steps of mixed prefill and decode. Knows no HTTP."""
