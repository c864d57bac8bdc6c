"""How the starter models of the text service are made, trained and judged."""
