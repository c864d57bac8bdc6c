"""Types of everything that crosses a process, torch-free. Import from the modules, not from here."""
