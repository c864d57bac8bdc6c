"""What compiled CPU ops share: compilation, vector instructions, LLVM IR, thread teams, huge pages. Knows no op."""
