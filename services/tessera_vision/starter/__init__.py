"""How the starter models of the vision service are made, trained and judged."""
