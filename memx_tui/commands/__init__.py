"""The verbs of ``memx-tui``, one module each, imported only when the verb is used."""
