"""What compiled CPU ops share: compilation, vector instructions, teams of threads. Knows no op."""
