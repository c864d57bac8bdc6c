"""All settings of the suite: one file per section. Import from the modules, not from here."""
