"""How the starter models of the speech service are made, trained and judged."""
