"""The sequence engine: generates tokens in steps of mixed prefill and decode. Knows nothing about HTTP."""
