"""Adapters of the symbolic game to other libraries. Each module needs its library, and no module imports another."""
