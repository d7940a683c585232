"""What `bayplan replay` can replay: a module per kind."""
