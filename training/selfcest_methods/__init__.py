"""Methods of the literature: credit schemes, task samplers, group filters, reward schedules and strategies of play.

Each method has one file. The docstring of the file has the rule, the source and the differences from the source. The
notes are in docs/methods.md. Nothing imports this package, because its plug-ins are found through entry points.
"""
