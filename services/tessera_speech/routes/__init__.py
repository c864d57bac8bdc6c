"""The HTTP routes of the speech service, a file per subject."""
