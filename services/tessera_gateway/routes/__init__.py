"""The gateway's routes, one file for each subject. A handler reads a body under its limits and gives it to the
proxy."""
