"""The Responses API over chat completions: requests, tools, conversations, answers and streams of typed events."""
