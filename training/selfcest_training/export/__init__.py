"""Integrations with other trainers: episodes and their credit become rows that those trainers read.

Only the command `selfcest export` imports this package.
"""
