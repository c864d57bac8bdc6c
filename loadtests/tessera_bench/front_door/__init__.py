"""What the front door costs: the processor time of the gateway for a request and for a chunk of a stream."""
