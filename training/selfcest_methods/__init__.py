"""Methods of the literature, one file for each: credit schemes, task samplers, filters, schedules, strategies of play.

Nothing imports this package. Its plug-ins are found through entry points, as those of any other package are.
"""
