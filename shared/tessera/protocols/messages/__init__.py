"""Anthropic's messages: requests to chat requests, chat answers to messages and their events."""
