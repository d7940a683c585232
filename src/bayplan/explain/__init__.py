"""Decision records and refusals in words: what conditions, events and the command line say."""
