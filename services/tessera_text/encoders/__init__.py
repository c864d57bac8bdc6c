"""The HTTP side of encoders: from requests to the tokens that their engine takes, and back."""
