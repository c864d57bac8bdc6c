"""Other APIs than chat completions that the same answers are given in: each translates its requests and answers."""
