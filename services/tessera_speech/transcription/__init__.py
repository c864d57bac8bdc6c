"""From a recording to a transcript in one of the formats that clients ask for."""
