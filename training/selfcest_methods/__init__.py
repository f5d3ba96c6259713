"""Methods of the literature: credit schemes, task samplers, group filters, reward schedules and strategies of play.

Each method has one file. Its docstring says what the method does, its source, and what differs from the source; the
notes in docs/methods.md have the rest. Nothing imports this package: its plug-ins are found through entry points, as
those of any other package are.
"""
