"""The `ako` command: a module per group of verbs, imported when one of its verbs is called."""
