"""The Responses API of OpenAI: requests, items, tools, answers and the events of a stream."""
