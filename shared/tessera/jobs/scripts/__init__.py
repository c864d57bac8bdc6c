"""The Lua scripts that Redis runs: each one atomic change of job records or queues."""
